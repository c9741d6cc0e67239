/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * RDMA devices have no namespace of their own where the host shares them: sysfs lists all of them in every instance,
 * and libraries take what they find there. So the folders of their classes are covered in the instance, with what the
 * instance has a node of. What is shown always follows from the nodes: it is made anew after each of them. */
#include "monitor.h"
#include "names.h"

static const char *const names[CLASSES] = {"infiniband", "infiniband_verbs", "infiniband_mad", "infiniband_cm"};

/* Where a node is in the class of its device; `hca` is the RDMA device that it belongs to, the first of the classes. */
struct place {
	size_t class;
	struct priv_class_link node, hca; /* as they are to be linked */
};

/* `../../devices/PARENT/infiniband_verbs/uverbs0` is the node of `../../devices/PARENT/infiniband/mlx5_0`. */
static bool place_of(const struct monitor *m, const struct part *p, struct place *at)
{
	char base[48], path[64], hca[PRIV_NAME], *name, *class;
	ssize_t length;

	if (p->state != PART_HELD || p->device.type != CTL_CHAR)
		return false;
	*at = (struct place){0};
	snprintf(base, sizeof(base), "sys/dev/char/%u:%u", p->device.major, p->device.minor);
	length = readlinkat(m->root, base, at->node.target, sizeof(at->node.target) - 1);
	if (length <= 0 || !(name = strrchr(at->node.target, '/')) || strlen(name) > sizeof(at->node.name))
		return false;
	*name = '\0';
	class = strrchr(at->node.target, '/');
	for (at->class = 1; class && at->class < CLASSES && strcmp(class + 1, names[at->class]);)
		at->class ++;
	if (!class || at->class == CLASSES)
		return false;
	strcpy(at->node.name, name + 1);
	snprintf(path, sizeof(path), "%s/ibdev", base);
	if (read_at(m->root, path, hca, sizeof(hca)) > 0) {
		hca[strcspn(hca, "\n")] = '\0';
		strcpy(at->hca.name, hca);
		length = snprintf(at->hca.target, sizeof(at->hca.target), "%.*s/%s/%s", (int)(class - at->node.target),
				  at->node.target, names[0], hca);
		if (length >= (ssize_t)sizeof(at->hca.target))
			at->hca.name[0] = '\0';
	}
	*name = '/';
	return true;
}

static bool is_wanted(const struct monitor *m, size_t class, const char *name)
{
	struct place at;

	for (const struct part *p = m->part; p < m->part + m->used; p++)
		if (place_of(m, p, &at) &&
		    ((at.class == class && !strcmp(at.node.name, name)) || (!class && !strcmp(at.hca.name, name))))
			return true;
	return false;
}

static int hide_others(struct monitor *m, size_t class, struct failure *f)
{
	OWNED int folder = openat(m->class[class], ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct names shown = NAMES(folder);
	const struct dirent64 *entry;
	int failed = folder < 0 ? fail(f, "hide RDMA devices", "`%s`", names[class]) : 0;

	while (!failed && (entry = names_next(&shown))) {
		struct priv_class_link link = {0};

		snprintf(link.name, sizeof(link.name), "%.63s", entry->d_name);
		if (entry->d_type == DT_LNK && !is_wanted(m, class, link.name))
			failed = PRIV_CALL(PRIV_CLASS_LINK, &link, NULL, f, m->class[class]);
	}
	return failed;
}

static int show(struct monitor *m, size_t class, const struct priv_class_link *link, struct failure *f)
{
	char there[PRIV_PATH];
	ssize_t length;

	/* a class whose folder is not there yet has nothing to hide either */
	if (!link->name[0] || m->class[class] < 0)
		return 0;
	length = readlinkat(m->class[class], link -> name, there, sizeof(there) - 1);
	if (length >= 0) {
		there[length] = '\0';
		if (!strcmp(there, link->target))
			return 0;
	}
	return PRIV_CALL(PRIV_CLASS_LINK, link, NULL, f, m->class[class]);
}

/* Folders are there from when a driver is: also later than the instance. */
static int cover(struct monitor *m, struct failure *f)
{
	char path[48];

	for (size_t i = 0; i < CLASSES; i++) {
		struct priv_class request = {0};

		snprintf(path, sizeof(path), "sys/class/%s", names[i]);
		if (m->class[i] >= 0 || faccessat(m->root, path, F_OK, 0)) {
			if (m->class[0] < 0)
				return 0; /* without the first there is none: the one look that a host without pays */
			continue;
		}
		snprintf(request.name, sizeof(request.name), "%s", names[i]);
		if (PRIV_CALL(PRIV_CLASS, &request, &m->class[i], f, m -> root))
			return -1;
	}
	return 0;
}

int classes_show(struct monitor *m, struct failure *f)
{
	struct place at;

	/* nested containers could not mount their own sysfs if something lay over ours */
	if (m->plan.nesting)
		return 0;
	if (cover(m, f))
		return -1;
	if (m->class[0] < 0)
		return 0;
	for (size_t i = 0; i < CLASSES; i++)
		if (m->class[i] >= 0 && hide_others(m, i, f))
			return -1;
	for (const struct part *p = m->part; p < m->part + m->used; p++)
		if (place_of(m, p, &at) && (show(m, at.class, &at.node, f) || show(m, 0, &at.hca, f)))
			return -1;
	return 0;
}
