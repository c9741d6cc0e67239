/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * What devices consist of - nodes, mounts, variables, hooks - and how they come and go together. A part is prepared
 * first, where nobody sees it; a client's parts are committed in one go, or none of them is. */
#include "exec.h"
#include "links.h"
#include "monitor.h"

#include <stdlib.h>
#include <sys/stat.h>

static mode_t node_type(const struct ctl_device *d)
{
	return d->type == CTL_BLOCK ? S_IFBLK : S_IFCHR;
}

bool part_is_node(const struct part *p)
{
	return p->device.type == CTL_CHAR || p->device.type == CTL_BLOCK;
}

struct part *part_next(struct monitor *m, const char *name, const struct part *after)
{
	for (struct part *p = after ? m->part + (after - m->part) + 1 : m->part; p < m->part + m->used; p++)
		if (p->state >= PART_HELD && !strcmp(p->device.name, name))
			return p;
	return NULL;
}

struct part *part_sharer(struct monitor *m, const struct part *p)
{
	for (struct part *q = m->part; p->placed && q < m->part + m->used; q++)
		if (q->state >= PART_HELD && q->device.type == CTL_SHARE && !strcmp(q->device.path, p->device.path) &&
		    strcmp(q->device.name, p->device.name))
			return q;
	return NULL;
}

/* The filter's rule for a number: everything that any part of it that counts may do; or none. */
static int filter_number(struct monitor *m, const struct ctl_device *d, struct failure *f)
{
	struct priv_rule rule = {.v1 = m->filter_v1, .type = node_type(d), .major = d->major, .minor = d->minor};

	for (size_t i = 0; i < m->used; i++) {
		const struct part *p = &m->part[i];

		if (p->state == PART_HELD && p->device.type == d->type && p->device.major == d->major &&
		    p->device.minor == d->minor)
			rule.access |= p->device.access;
	}
	if (PRIV_CALL(rule.access ? PRIV_ALLOW : PRIV_DENY, &rule, NULL, f, m->filter))
		return -1;
	fence_number(m, d, !rule.access);
	return 0;
}

/* Strings that each end, the first of which says what it is. */
static bool words_ok(const char *text, size_t size)
{
	return size && size <= CTL_TEXT_MAX && text[0] && !text[size - 1];
}

static bool request_ok(const struct ctl_device *d, const char *text, size_t size)
{
	if (!memchr(d->name, 0, sizeof(d->name)) || !d->name[0] || !memchr(d->path, 0, sizeof(d->path)) ||
	    !memchr(d->user, 0, sizeof(d->user)) || !memchr(d->group, 0, sizeof(d->group)))
		return false;
	switch ((enum ctl_device_type)d->type) {
	case CTL_CHAR:
	case CTL_BLOCK: return !strncmp(d->path, "/dev/", 5) && d->mode <= 0777 && d->access && d->access <= 7;
	case CTL_FILESYSTEM:
		if (!words_ok(text, size))
			return false;
		__attribute__((fallthrough));
	case CTL_BIND:
		return d->path[0] == '/' && plain_path(d->path + 1, sizeof(d->path) - 1) && d->access & CTL_READ &&
		       !(d->access & ~(uint32_t)(CTL_READ | CTL_WRITE | CTL_EXEC | CTL_SHIFT | CTL_RECURSIVE));
	case CTL_SHARE: return d->path[0] == '/' && plain_path(d->path + 1, sizeof(d->path) - 1);
	case CTL_ENV:
		return words_ok(text, size) && plan_variable(text) && strchr(text, '=') && strlen(text) == size - 1;
	case CTL_GROUP:
		return words_ok(text, size) && text[0] == '=' && size > 2 && strlen(text) == size - 1 &&
		       strspn(text + 1, "0123456789") == size - 2;
	case CTL_HOOK:
	case CTL_RESCTRL: return words_ok(text, size);
	case CTL_RDMA: return plain_path(d->path, sizeof(d->path)) && !strchr(d->path, '/');
	case CTL_NETDEV: return words_ok(text, size) && plain_path(d->path, sizeof(d->path)) && !strchr(d->path, '/');
	case CTL_RULE: return words_ok(text, size) && d->mode <= 0777 && d->access && d->access <= 7;
	}
	return false;
}

/* Host ids of the owner, by number or by the name that the instance itself has for it. */
static int owner(struct monitor *m, struct ctl_device *d, struct priv_node *node, struct failure *f)
{
	const char *unknown =
		identify_owner(d->user[0] ? d->user : "0", d->group[0] ? d->group : "0", &d->uid, &d->gid);

	errno = ENOENT;
	if (unknown)
		return fail(f, "find the owner", "the instance has no %s `%s`", unknown,
			    strcmp(unknown, "group") ? d->user : d->group);
	node->uid = plan_map(m->plan.uid, m->plan.uids, d->uid);
	node->gid = plan_map(m->plan.gid, m->plan.gids, d->gid);
	errno = EOVERFLOW;
	if (node->uid == UINT32_MAX || node->gid == UINT32_MAX)
		return fail(f, "find the owner", "%u:%u is not mapped in the instance", d->uid, d->gid);
	return 0;
}

static int prepare_node(struct monitor *m, struct part *p, int source, struct failure *f)
{
	struct ctl_device *d = &p->device;
	struct priv_node node = {.type = node_type(d), .major = d->major, .minor = d->minor, .mode = d->mode};
	static unsigned serial;

	snprintf(p->aside, sizeof(p->aside), ".ctrmgr-%d-%u", getpid(), serial++);
	memcpy(node.aside, p->aside, sizeof(p->aside));
	return owner(m, d, &node, f) || PRIV_CALL(PRIV_NODE, &node, &p->fd, f, m->dev, source) ? -1 : 0;
}

static int prepare(struct monitor *m, struct part *p, int source, const char *text, size_t size, struct failure *f)
{
	if (part_is_node(p))
		return prepare_node(m, p, source, f);
	if (part_is_mount(p)) {
		p->fd = fcntl(source, F_DUPFD_CLOEXEC, 3);
		return p->fd < 0 ? fail(f, "read the request", "a mount without its source")
				 : mount_shift(m, p->device.access, p->fd, f);
	}
	if (p->device.type == CTL_SHARE)
		return 0;
	if (p->device.type == CTL_NETDEV)
		return link_prepare(m, p, text, size, f);
	if (p->device.type == CTL_RDMA)
		return rdma_prepare(p, f);
	if (p->device.type == CTL_GROUP) {
		errno = EOVERFLOW;
		if (size > 11 ||
		    plan_map(m->plan.gid, m->plan.gids, (uint32_t)strtoul(text + 1, NULL, 10)) == UINT32_MAX)
			return fail(f, "find the owner", "the group %.32s is not mapped in the instance", text + 1);
	}
	if (p->device.type == CTL_RULE && hotplug_open(m, f))
		return -1;
	p->text = malloc(size);
	if (!p->text)
		return fail(f, "read the request", "memory");
	memcpy(p->text, text, size);
	p->size = size;
	/* for whoever lists it: the variable, the kind of hook, the group, the class */
	snprintf(p->device.path, sizeof(p->device.path), "%.*s",
		 (int)(p->device.type == CTL_ENV ? strcspn(text, "=") : strlen(text)),
		 text + (p->device.type == CTL_GROUP));
	return p->device.type == CTL_RESCTRL ? resctrl_prepare(m, p, source, f) : 0;
}

int part_prepare(struct monitor *m, const struct ctl_device *wanted, int client, int source, const char *text,
		 size_t size, struct failure *f)
{
	struct part *part = NULL;

	errno = EINVAL;
	if (!request_ok(wanted, text, size))
		return fail(f, "read the request", "not a device");
	errno = EEXIST;
	for (size_t i = 0; i < m->used; i++) {
		struct part *p = &m->part[i];

		if (p->state == PART_FREE)
			part = part ? part : p;
		else if (client != PLUGGING && !strcmp(p->device.name, wanted->name) &&
			 (p->state != PART_PREPARED || p->client != client))
			return fail(f, "attach", "a device `%s` is attached already", wanted->name);
	}
	if (!part && m->used < PARTS)
		part = &m->part[m->used++];
	errno = ENOSPC;
	if (!part)
		return fail(f, "attach", "devices of %d parts are attached already", PARTS);
	*part = (struct part){.device = *wanted, .client = client, .fd = -1, .made = -1};
	if (prepare(m, part, source, text, size, f)) {
		part_free(part);
		return -1;
	}
	part->state = PART_PREPARED;
	return 0;
}

static int place(struct monitor *m, struct part *p, struct failure *f)
{
	struct priv_place node = {.root_uid = m->root_uid, .root_gid = m->root_gid};
	struct priv_bind bind = {.uid = m->root_uid, .gid = m->root_gid};
	int failed = 0;

	if (part_is_node(p)) {
		memcpy(node.aside, p->aside, sizeof(p->aside));
		memcpy(node.path, p->device.path + 5, sizeof(p->device.path) - 5);
		failed = PRIV_CALL(PRIV_PLACE, &node, &p->made, f, m->dev);
	} else if (part_is_mount(p)) {
		memcpy(bind.path, p->device.path + 1, sizeof(p->device.path) - 1);
		failed = PRIV_CALL(PRIV_BIND, &bind, NULL, f, m->root, p->fd);
	} else if (p->device.type == CTL_NETDEV) {
		failed = link_place(m, p, f);
	} else if (p->device.type == CTL_RDMA) {
		failed = rdma_place(m, p, f);
	} else if (p->device.type == CTL_RESCTRL) {
		failed = resctrl_place(m, p, f);
	}
	p->placed = !failed;
	return failed;
}

int part_revoke(struct monitor *m, const struct part *p, bool keep, struct failure *f)
{
	struct priv_revoke request = {.uid = m->dead_uid, .gid = m->dead_gid, .keep = keep};
	int in[3] = {m->dev, p->fd, p->made};

	if (p->placed)
		memcpy(request.path, p->device.path + 5, sizeof(p->device.path) - 5);
	else
		memcpy(request.path, p->aside, sizeof(p->aside));
	return priv_call(PRIV_REVOKE, &request, sizeof(request), in, p->made < 0 ? 2 : 3, NULL, f);
}

int part_withdraw(struct monitor *m, struct part *p, struct failure *f)
{
	struct priv_unbind request = {.uid = m->root_uid, .gid = m->root_gid};
	int failed = 0;

	if (part_is_node(p)) {
		failed = part_revoke(m, p, false, f);
	} else if (part_is_mount(p) && p->placed) {
		memcpy(request.path, p->device.path + 1, sizeof(p->device.path) - 1);
		failed = PRIV_CALL(PRIV_UNBIND, &request, NULL, f, m->root, p->fd);
	} else if (p->device.type == CTL_NETDEV) {
		failed = link_withdraw(m, p, f);
	} else if (p->device.type == CTL_RDMA) {
		failed = rdma_withdraw(m, p, f);
	} else if (p->device.type == CTL_RESCTRL) {
		failed = resctrl_withdraw(m, p, f);
	}
	p->placed = p->placed && failed;
	return failed;
}

void part_free(struct part *p)
{
	close_fd(&p->fd);
	close_fd(&p->made);
	free(p->text);
	*p = (struct part){0};
}

/* Every part that the client has under way is as if it had never been. */
static void undo(struct monitor *m, int client)
{
	struct failure ignored;
	bool changed = false;

	for (size_t i = m->used; i--;) {
		struct part *p = &m->part[i];
		struct ctl_device d = p->device;
		bool counted = p->state == PART_HELD, node = part_is_node(p);

		if (p->state == PART_FREE || p->client != client)
			continue;
		p->state = PART_PREPARED;
		if (node && counted)
			filter_number(m, &d, &ignored);
		part_withdraw(m, p, &ignored);
		part_free(p);
		changed = changed || (node && counted);
	}
	if (changed)
		classes_show(m, &ignored);
}

void part_abandon(struct monitor *m, int client)
{
	undo(m, client);
}

int part_commit(struct monitor *m, int client, struct failure *f)
{
	int failed = 0;

	for (struct part *p = m->part; !failed && p < m->part + m->used; p++)
		if (p->state == PART_PREPARED && p->client == client) {
			p->state = PART_HELD;
			failed = part_is_node(p) ? filter_number(m, &p->device, f) : 0;
		}
	for (struct part *p = m->part; !failed && p < m->part + m->used; p++)
		if (p->state == PART_HELD && p->client == client)
			failed = place(m, p, f);
	if (failed || classes_show(m, f)) {
		undo(m, client);
		return -1;
	}
	for (struct part *p = m->part; p < m->part + m->used; p++)
		if (p->state == PART_HELD && p->client == client) {
			p->client = 0;
			p->untold = part_is_node(p) && m->started_ns;
		}
	return 0;
}

void parts_tell(struct monitor *m)
{
	for (struct part *p = m->part; p < m->part + m->used; p++)
		if (p->untold) {
			p->untold = false;
			uevent_node(m, &p->device, true, NULL, 0);
		}
}

int part_filter(struct monitor *m, const struct part *p, struct failure *f)
{
	return part_is_node(p) ? filter_number(m, &p->device, f) : 0;
}

int part_renew(struct monitor *m, struct part *p, int source, struct failure *f)
{
	/* first what is left of the old one, under whatever name */
	if (part_withdraw(m, p, f))
		return -1;
	close_fd(&p->fd);
	close_fd(&p->made);
	return prepare_node(m, p, source, f) || place(m, p, f) ? -1 : 0;
}
