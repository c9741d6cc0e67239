/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * What moves into the instance when another adapter takes the place of one that has gone: the RDMA device itself, where
 * the host keeps them apart, and its network link, which gets the name, the address and the MTU that were asked for. */
#include "hotplug.h"
#include "links.h"
#include "names.h"

#include <net/if.h>
#include <stdlib.h>

unsigned rule_moves(const struct part *rule)
{
	const char *class = rule_word(rule, "class");

	return !class ? 0 : !strcmp(class, "rdma") ? CTL_RDMA : !strcmp(class, "net") ? CTL_NETDEV : 0;
}

static const char *last(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

static bool add(struct unit *u, struct part *rule, const char *name)
{
	struct piece *piece = &u->piece[u->count];

	if (u->count == UNIT_MAX || !*name)
		return false;
	piece->rule = rule;
	piece->node = (struct node){0};
	snprintf(piece->node.name, sizeof(piece->node.name), "%s", name);
	u->count++;
	return true;
}

/* The one that the nodes are of: known by name, which another may have had. */
static bool add_rdma(struct monitor *m, struct unit *u, struct part *rule)
{
	struct part *there = spare_occupant(m, rule);
	char device[64] = "";

	for (size_t i = 0; i < u->count && !*device; i++)
		if (!rule_moves(u->piece[i].rule))
			node_attribute(m, &u->piece[i].node, 0, "ibdev", device, sizeof(device));
	if (there && rdma_is_there(m, there))
		return !strcmp(there->device.path, device);
	if (there)
		part_free(there);
	return add(u, rule, device);
}

#define LINKS "class/net"

bool node_is_link(const struct node *n)
{
	return !strncmp(n->base, LINKS "/", strlen(LINKS "/"));
}

static bool attribute(const struct monitor *m, const char *link, const char *file, char text[32])
{
	char path[64];

	snprintf(path, sizeof(path), LINKS "/%.15s/%s", link, file);
	if (read_at(m->host_sys, path, text, 32) <= 0)
		return false;
	text[strcspn(text, "\n")] = '\0';
	return true;
}

/* One that the host does not use - it is down -, of that port; a child of it (`ib0.8001`) says that it is one. */
static bool is_idle(const struct monitor *m, const char *link, const char *port)
{
	char of[32], flags[32], index[32], above[32];

	return attribute(m, link, "dev_port", of) && !strcmp(of, port) && attribute(m, link, "flags", flags) &&
	       !(strtoul(flags, NULL, 16) & IFF_UP) && attribute(m, link, "ifindex", index) &&
	       attribute(m, link, "iflink", above) && !strcmp(index, above);
}

/* A link as a node of its hardware, which is the place that it has. */
static bool link_open(const struct monitor *m, const char *name, struct node *n)
{
	char path[48], *end;

	*n = (struct node){0};
	snprintf(path, sizeof(path), LINKS "/%.15s", name);
	snprintf(n->base, sizeof(n->base), "%.30s/device", path);
	snprintf(n->name, sizeof(n->name), "%.15s", name);
	if (!sys_link(m, path, n->place, sizeof(n->place)) || !(end = strstr(n->place, "/net/")))
		return false;
	*end = '\0';
	return true;
}

/* Each that is idle, until one returns true. */
static bool links(struct monitor *m, const char *port, bool (*each)(struct monitor *, const struct node *, void *),
		  void *data)
{
	OWNED int folder = openat(m->host_sys, LINKS, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct names names = NAMES(folder);
	const struct dirent64 *entry;
	struct node n;

	while ((entry = names_next(&names)))
		if (entry->d_name[0] != '.' && is_idle(m, entry->d_name, port) && link_open(m, entry->d_name, &n) &&
		    each(m, &n, data))
			return true;
	return false;
}

static const char *port_of(const struct part *rule)
{
	const char *port = rule_word(rule, "port");

	return port ? port : "0";
}

struct wanted {
	const char *hardware;
	char name[16];
};

static bool is_its(struct monitor *m, const struct node *n, void *data)
{
	struct wanted *w = data;
	bool its = !strcmp(n->place, w->hardware);

	(void)m;
	if (its)
		snprintf(w->name, sizeof(w->name), "%.15s", n->name);
	return its;
}

/* Whether the rule's link is inside; one that is not any more is forgotten. */
static struct part *occupant(struct monitor *m, const struct part *rule)
{
	struct part *there = spare_occupant(m, rule);

	if (!there || link_is_there(m, there))
		return there;
	link_forget(m, there);
	return NULL;
}

static bool add_link(struct monitor *m, struct unit *u, struct part *rule, const char *hardware)
{
	const struct part *there = occupant(m, rule);
	struct wanted w = {.hardware = hardware};

	if (there)
		return !strcmp(moved_of(there)->was.device, last(hardware));
	if (!links(m, port_of(rule), is_its, &w))
		m->look_at = now_ms() + PATIENCE; /* drivers may make it after the nodes */
	return add(u, rule, w.name);
}

static bool consider(struct monitor *m, const struct node *n, void *data)
{
	struct part *rule = data;

	spare_consider(m, rule, n);
	return spare_occupant(m, rule);
}

void spare_try_links(struct monitor *m, struct part *rule)
{
	if (!occupant(m, rule))
		links(m, port_of(rule), consider, rule);
}

bool spare_add_move(struct monitor *m, struct unit *u, struct part *rule, const char *hardware)
{
	return rule_moves(rule) == CTL_RDMA ? add_rdma(m, u, rule) : add_link(m, u, rule, hardware);
}

int spare_prepare_move(struct monitor *m, const struct piece *piece)
{
	const char *path = rule_word(piece->rule, "path"), *address = rule_word(piece->rule, "address"),
		   *mtu = rule_word(piece->rule, "mtu");
	struct ctl_device d = piece->rule->device;
	struct failure ignored;
	char text[128];
	int size;

	d.type = rule_moves(piece->rule);
	d.user[0] = d.group[0] = '\0';
	snprintf(d.path, sizeof(d.path), "%s", d.type == CTL_RDMA ? piece->node.name : path);
	size = snprintf(text, sizeof(text), "%s%c%s%c%s", piece->node.name, 0, address ? address : "", 0,
			mtu ? mtu : "0");
	if (d.type == CTL_RDMA)
		size = -1;
	return part_prepare(m, &d, PLUGGING, -1, text, (size_t)(size + 1), &ignored);
}
