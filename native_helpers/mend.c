/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Putting back what others took from a running instance: its device program, nodes of its devices. */
#include "monitor.h"

#include <sys/stat.h>

int mend_filter(struct monitor *m, struct failure *f)
{
	const struct priv_program request = {0};
	OWNED int map = -1;

	errno = EOPNOTSUPP;
	if (m->filter_v1)
		return fail(f, "filter devices", "cgroup v1 has no programs");
	return PRIV_CALL(PRIV_PROGRAM, &request, &map, f, m->hierarchy[0].dir, m->filter);
}

int mend_node(struct monitor *m, const char *name, const char *path, int source, struct failure *f)
{
	struct priv_revoke revoke = {.uid = m->dead_uid, .gid = m->dead_gid};
	struct priv_node node = {.root_uid = m->root_uid, .root_gid = m->root_gid};
	struct lease *lease = NULL;
	int inode = -1;

	for (size_t i = 0; !lease && i < LEASES; i++)
		if (m->lease[i].held && !strcmp(m->lease[i].device.name, name) &&
		    !strcmp(m->lease[i].device.path, path))
			lease = &m->lease[i];
	errno = ENOENT;
	if (!lease)
		return fail(f, "make the node again", "no device `%s` is at `%s`", name, path);
	snprintf(node.path, sizeof(node.path), "%s", path + strlen("/dev/"));
	node.type = lease->device.type == CTL_BLOCK ? S_IFBLK : S_IFCHR;
	node.major = lease->device.major;
	node.minor = lease->device.minor;
	node.mode = lease->device.mode;
	node.uid = plan_map(m->plan.uid, m->plan.uids, lease->device.uid);
	node.gid = plan_map(m->plan.gid, m->plan.gids, lease->device.gid);
	memcpy(revoke.path, node.path, sizeof(revoke.path));
	/* first what is left of the old one, under whatever name */
	if (PRIV_CALL(PRIV_REVOKE, &revoke, NULL, f, m->dev, lease->inode) ||
	    PRIV_CALL(PRIV_NODE, &node, &inode, f, m->dev, source))
		return -1;
	close_fd(&lease->inode);
	lease->inode = inode;
	return 0;
}
