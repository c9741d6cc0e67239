/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Putting back what others took from a running instance: its device program, nodes of its devices. */
#include "monitor.h"

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
	for (struct part *p = NULL; (p = part_next(m, name, p));)
		if (part_is_node(p) && !strcmp(p->device.path, path))
			return part_renew(m, p, source, f);
	errno = ENOENT;
	return fail(f, "make the node again", "no device `%s` is at `%s`", name, path);
}
