/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * What hardware a node belongs to, and of what model that is. Sysfs knows it of most; of two kinds it does not:
 * NVIDIA's driver lists its GPUs in /proc and has no device for their nodes, and RDMA devices that are software have no
 * hardware, so that each is its own. */
#include "hotplug.h"
#include "names.h"

#include <fcntl.h>
#include <stdlib.h>

#define CARDS   "driver/nvidia/gpus"
#define MINORS  254 /* the last two of its numbers are no GPU's */
#define ADDRESS 13  /* `0000:65:00.0`, ended */

/* `uverbs0` of `rxe0`, which has no parent. */
static bool software_of(const struct monitor *m, const struct node *n, char *hardware, char *vendor, char *model,
			size_t size)
{
	char device[64], path[128];

	if (!strstr(n->place, "/virtual/infiniband") || !node_attribute(m, n, 0, "ibdev", device, sizeof(device)))
		return false;
	snprintf(hardware, PLACE_MAX, "infiniband/%s", device);
	snprintf(vendor, size, "software");
	snprintf(path, sizeof(path), "class/infiniband/%s/node_type", device);
	if (read_at(m->host_sys, path, model, size) < 0)
		*model = '\0'; /* it is in another network namespace */
	model[strcspn(model, "\n")] = '\0';
	return true;
}

/* The place of the nearest directory above that has a model: a USB device's, or of another bus. */
bool model_of(const struct monitor *m, const struct node *n, char *hardware, char *vendor, char *model, size_t size)
{
	if (software_of(m, n, hardware, vendor, model, size))
		return true;
	snprintf(hardware, PLACE_MAX, "%s", n->place);
	for (unsigned above = 0; above <= DEPTH; above++) {
		char *slash = strrchr(hardware, '/');

		if ((node_attribute(m, n, above, "idVendor", vendor, size) &&
		     node_attribute(m, n, above, "idProduct", model, size)) ||
		    (node_attribute(m, n, above, "vendor", vendor, size) &&
		     node_attribute(m, n, above, "device", model, size)))
			/* an RDMA device that is further below is of a part of it */
			return above == 2 || !strstr(n->place, "/infiniband_");
		if (!slash)
			return false;
		*slash = '\0';
	}
	return false;
}

/* The value of a line `Key: \t value`. */
static const char *value_of(const char *text, const char *key)
{
	const char *line = strstr(text, key);

	return line ? line + strlen(key) + strspn(line + strlen(key), " \t") : "";
}

/* A GPU that the driver may use, as a node of its PCI function. */
static bool card_open(const struct monitor *m, const char *address, struct node *n)
{
	char path[64], text[1024], link[PLACE_MAX], *end;
	const char *minor, *place;

	*n = (struct node){.major = NVIDIA_MAJOR};
	snprintf(path, sizeof(path), CARDS "/%.*s/information", ADDRESS - 1, address);
	if (read_at(m->proc, path, text, sizeof(text)) <= 0)
		return false;
	minor = value_of(text, "Device Minor:");
	n->minor = (unsigned)strtoul(minor, &end, 10);
	if (end == minor || n->minor >= MINORS || !strncmp(value_of(text, "GPU Excluded:"), "Yes", 3))
		return false;
	snprintf(n->base, sizeof(n->base), "bus/pci/devices/%.*s", ADDRESS - 1, address);
	snprintf(n->name, sizeof(n->name), "nvidia%u", n->minor);
	if (!sys_link(m, n->base, link, sizeof(link)) || !(place = strstr(link, "devices/")))
		return false;
	/* as other nodes have it, so that those of one piece of hardware are known by it */
	snprintf(n->place, sizeof(n->place), "../../%.*s", (int)sizeof(n->place) - 7, place);
	return true;
}

/* One that is divided gives nothing to whoever has no slice of it. */
static bool is_divided(const struct monitor *m, unsigned minor)
{
	const struct dirent64 *entry;
	OWNED int folder = -1;
	struct names names;
	char path[64];

	snprintf(path, sizeof(path), "driver/nvidia/capabilities/gpu%u/mig", minor);
	folder = openat(m->proc, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	names = NAMES(folder);
	while ((entry = names_next(&names)))
		if (!strncmp(entry->d_name, "gi", 2))
			return true;
	return false;
}

/* Each GPU, until one returns true. */
static bool cards(const struct monitor *m, bool (*each)(const struct node *n, void *data), void *data)
{
	OWNED int folder = openat(m->proc, CARDS, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct names names = NAMES(folder);
	const struct dirent64 *entry;
	struct node n;

	while ((entry = names_next(&names)))
		if (strlen(entry->d_name) == ADDRESS - 1 && card_open(m, entry->d_name, &n) && each(&n, data))
			return true;
	return false;
}

static bool is_minor(const struct node *n, void *data)
{
	struct node *wanted = data;
	bool same = n->minor == wanted->minor;

	if (same)
		*wanted = *n;
	return same;
}

bool nvidia_open(const struct monitor *m, unsigned minor, struct node *n)
{
	*n = (struct node){.minor = minor};
	return minor < MINORS && cards(m, is_minor, n);
}

struct visitor {
	struct monitor *m;
	node_visit *visit;
	void *data;
};

static bool visit_whole(const struct node *n, void *data)
{
	struct visitor *v = data;

	return !is_divided(v->m, n->minor) && v->visit(v->m, "char", n->major, n->minor, v->data);
}

bool nvidia_each(struct monitor *m, node_visit *visit, void *data)
{
	return cards(m, visit_whole, &(struct visitor){m, visit, data});
}

bool node_is_gone(const struct monitor *m, const struct part *p)
{
	struct node n;
	char base[BASE_MAX];

	if (!strncmp(p->device.path, "/dev/nvidia", strlen("/dev/nvidia"))) /* sysfs has none of them */
		return p->device.major == NVIDIA_MAJOR && p->device.minor < MINORS &&
		       !nvidia_open(m, p->device.minor, &n);
	snprintf(base, sizeof(base), "dev/%s/%u:%u", p->device.type == CTL_BLOCK ? "block" : "char", p->device.major,
		 p->device.minor);
	return faccessat(m->host_sys, base, F_OK, 0);
}
