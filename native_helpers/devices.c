/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Attaching and detaching while the instance runs. A lease is what the instance has of one device: the
 * descriptor of an inode that nobody else shares, and a number that the filter lets through. */
#include "exec.h"
#include "monitor.h"

#include <signal.h>
#include <sys/stat.h>

static struct lease *find(struct monitor *m, const char *name)
{
	for (size_t i = 0; i < LEASES; i++)
		if (m->lease[i].held && !strcmp(m->lease[i].device.name, name))
			return &m->lease[i];
	return NULL;
}

static mode_t node_type(const struct ctl_device *d)
{
	return d->type == CTL_BLOCK ? S_IFBLK : S_IFCHR;
}

/* The filter's rule for a number: everything that any lease of it, but `without`, may do; or none. */
static int filter_number(struct monitor *m, const struct ctl_device *d, const struct lease *without, uint32_t access,
			 struct failure *f)
{
	struct priv_rule rule = {
		.v1 = m->filter_v1, .type = node_type(d), .major = d->major, .minor = d->minor, .access = access};

	for (size_t i = 0; i < LEASES; i++) {
		const struct lease *l = &m->lease[i];

		if (l != without && l->held && l->device.type == d->type && l->device.major == d->major &&
		    l->device.minor == d->minor)
			rule.access |= l->device.access;
	}
	if (PRIV_CALL(rule.access ? PRIV_ALLOW : PRIV_DENY, &rule, NULL, f, m->filter))
		return -1;
	fence_number(m, d, !rule.access);
	return 0;
}

static bool text_ok(const struct ctl_device *d)
{
	return memchr(d->name, 0, sizeof(d->name)) && d->name[0] && memchr(d->path, 0, sizeof(d->path)) &&
	       !strncmp(d->path, "/dev/", 5) && memchr(d->user, 0, sizeof(d->user)) &&
	       memchr(d->group, 0, sizeof(d->group)) && (d->type == CTL_CHAR || d->type == CTL_BLOCK) &&
	       d->mode <= 0777 && d->access && d->access <= 7;
}

/* Host ids of the owner, by number or by the name that the instance itself has for it. */
static int owner(struct monitor *m, struct ctl_device *d, struct priv_node *node, struct failure *f)
{
	struct user user;
	const char *unknown = identify(d->user[0] ? d->user : "0", d->group[0] ? d->group : "0", &user);

	errno = ENOENT;
	if (unknown)
		return fail(f, "find the owner", "the instance has no %s `%s`", unknown,
			    strcmp(unknown, "group") ? d->user : d->group);
	d->uid = user.uid;
	d->gid = user.gid;
	node->uid = plan_map(m->plan.uid, m->plan.uids, user.uid);
	node->gid = plan_map(m->plan.gid, m->plan.gids, user.gid);
	errno = EOVERFLOW;
	if (node->uid == UINT32_MAX || node->gid == UINT32_MAX)
		return fail(f, "find the owner", "%u:%u is not mapped in the instance", user.uid, user.gid);
	return 0;
}

int device_attach(struct monitor *m, const struct ctl_device *wanted, int source, struct failure *f)
{
	struct ctl_device d = *wanted;
	struct priv_node node = {.type = node_type(&d),
				 .major = d.major,
				 .minor = d.minor,
				 .mode = d.mode,
				 .root_uid = m->root_uid,
				 .root_gid = m->root_gid};
	struct failure ignored;
	struct lease *lease = NULL;

	errno = EINVAL;
	if (!text_ok(&d))
		return fail(f, "read the request", "not a device");
	errno = EEXIST;
	if (find(m, d.name))
		return fail(f, "attach", "a device `%s` is attached already", d.name);
	for (size_t i = 0; !lease && i < LEASES; i++)
		lease = m->lease[i].held ? NULL : &m->lease[i];
	errno = ENOSPC;
	if (!lease)
		return fail(f, "attach", "%d devices are attached already", LEASES);
	memcpy(node.path, d.path + 5, sizeof(d.path) - 5);
	if (owner(m, &d, &node, f) || filter_number(m, &d, NULL, d.access, f))
		return -1;
	if (PRIV_CALL(PRIV_NODE, &node, &lease->inode, f, m->dev, source)) {
		filter_number(m, &d, NULL, 0, &ignored);
		return -1;
	}
	lease->device = d;
	lease->held = true;
	return 0;
}

static void kill_holders(const struct ctl_holder *holders, int count)
{
	for (int i = 0; i < count && i < CTL_HOLDERS_MAX; i++)
		syscall(SYS_kill, holders[i].pid, SIGKILL);
}

static int take_away(struct monitor *m, struct lease *lease, struct failure *f)
{
	struct priv_revoke request = {.uid = m->dead_uid, .gid = m->dead_gid};

	memcpy(request.path, lease->device.path + 5, sizeof(request.path) - 5);
	return filter_number(m, &lease->device, lease, 0, f) ||
	       PRIV_CALL(PRIV_REVOKE, &request, NULL, f, m->dev, lease->inode);
}

int device_detach(struct monitor *m, const char *name, int policy, struct ctl_holder *holders, int *count,
		  struct failure *f)
{
	struct lease *lease = find(m, name);
	struct failure ignored;
	/* A process that opens the device while we look is missed unless all stand still. */
	bool frozen = policy == CTL_REFUSE || policy == CTL_FREEZE_HOLDERS;

	*count = 0;
	errno = ENOENT;
	if (!lease)
		return fail(f, "detach", "no device `%s` is attached", name);
	if (frozen && cgroups_freeze(m, true, f))
		return -1;
	if (policy == CTL_REFUSE && (*count = holders_find(m, lease, holders)) > 0) {
		cgroups_freeze(m, false, &ignored);
		errno = EBUSY;
		return fail(f, "detach", "%d processes have `%s` open", *count, lease->device.path);
	}
	if (take_away(m, lease, f)) {
		if (frozen)
			cgroups_freeze(m, false, &ignored);
		return -1;
	}
	*count = holders_find(m, lease, holders);
	close_fd(&lease->inode);
	lease->held = false;
	if (policy == CTL_KILL_HOLDERS)
		kill_holders(holders, *count);
	if (frozen && (policy == CTL_REFUSE || !*count))
		cgroups_freeze(m, false, &ignored);
	return 0;
}
