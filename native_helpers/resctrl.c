/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * The class of cache and memory bandwidth that devices put the instance into, by the rules of OCI's `intelRdt`. Every
 * task has a class, which its children inherit: init joins before it runs anything, ctrmgr-exec before it enters: it
 * asks again once it is in the cgroup, so that either it hears of a class or the class finds it there. What we make is
 * written down first, in the run directory, for whoever must remove it without us. */
#include "flat.h"
#include "monitor.h"
#include "schemata.h"

#include <stdlib.h>
#include <sys/stat.h>

#define GROUP (O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)

/* A part's text: the class - `.` is one of the instance's own, `/` everybody's -, where resctrl is mounted, `monitored`
 * or nothing, and lines of schemata. */
struct wanted {
	const char *class, *source, *line, *end;
	bool own, monitored;
};

static const char *next(const char *word)
{
	return word + strlen(word) + 1;
}

static bool understood(const struct part *p, struct wanted *w)
{
	*w = (struct wanted){.class = p->text, .end = p->text + p->size};
	w->source = next(w->class);
	if (w->source >= w->end || next(w->source) >= w->end)
		return false;
	w->monitored = *next(w->source);
	w->line = next(next(w->source));
	w->own = !strcmp(w->class, ".");
	/* a name as it is written down, too */
	return w->source[0] == '/' && strlen(w->source) < PRIV_PATH && !strpbrk(w->source, "\t\n\\") &&
	       !strpbrk(w->class, "\t\n\\") &&
	       (w->own || !strcmp(w->class, "/") || (plain_path(w->class, PRIV_PATH) && !strchr(w->class, '/')));
}

/* The instance's own name among groups: its cgroup's. */
static void own_name(const struct monitor *m, char name[PRIV_PATH])
{
	snprintf(name, PRIV_PATH, "%.255s", m->plan.cgroup);
	for (char *c = name; *c; c++)
		*c = *c == '/' ? '-' : *c;
}

/* Another device's wish for it, or, unless `placed`, what may become one. */
static struct part *another(struct monitor *m, const struct part *p, bool placed)
{
	for (struct part *q = m->part; q < m->part + m->used; q++)
		if (q != p && q->state != PART_FREE && q->device.type == CTL_RESCTRL && q->placed >= placed)
			return q;
	return NULL;
}

int resctrl_prepare(struct monitor *m, struct part *p, int source, struct failure *f)
{
	const struct part *other = another(m, p, false);
	struct wanted w;

	errno = EINVAL;
	if (!understood(p, &w))
		return fail(f, "read the request", "not a class");
	errno = EBUSY;
	if (other && (other->size != p->size || memcmp(other->text, p->text, p->size)))
		return fail(f, "attach", "device `%s` has put the instance into another class: `%.128s`",
			    other->device.name, other->device.path);
	if (w.own)
		own_name(m, p->device.path);
	if (m->resctrl < 0)
		m->resctrl = fcntl(source, F_DUPFD_CLOEXEC, 3);
	return m->resctrl < 0 ? fail(f, "read the request", "a class without resctrl") : 0;
}

/* What is to be removed at the end: `own` or `other` says whose the class is. */
static int record(const struct wanted *w, const char *class, bool ours)
{
	OWNED int fd = openat(FD_RUN, "resctrl.new", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
	const char *whose = ours ? "own" : "other", *also = w->monitored ? "monitored" : "";

	if (fd < 0 || dprintf(fd, "resctrl\t%s\t%s\t%s\t%s\nend\n", w->source, class, whose, also) < 0)
		return -1;
	return renameat(FD_RUN, "resctrl.new", FD_RUN, "resctrl");
}

/* All tasks, while none of them makes another one. A second time for what cannot be frozen at once. */
static int move(struct monitor *m, int group, int watch, struct failure *f)
{
	struct priv_group_join request = {0};
	struct failure ignored;
	int cgroup = m->hierarchy[0].dir, times = m->started_ns ? 2 : 1, failed = 0;
	char state[4];
	bool freeze = m->started_ns && read_at(cgroup, "cgroup.freeze", state, sizeof(state)) > 0 && state[0] == '0';

	if (freeze)
		cgroups_freeze(m, true, &ignored);
	while (!failed && times--)
		failed = PRIV_CALL(PRIV_GROUP_JOIN, &request, NULL, f, group, cgroup) ||
			 (watch >= 0 && PRIV_CALL(PRIV_GROUP_JOIN, &request, NULL, f, watch, cgroup));
	if (freeze)
		cgroups_freeze(m, false, &ignored);
	return failed ? -1 : 0;
}

/* The kernel's own word on what it has refused. */
static int refused(const struct monitor *m, struct failure *f)
{
	char said[128];
	size_t length = strlen(f->detail);

	if (read_at(m->resctrl, "info/last_cmd_status", said, sizeof(said)) > 0 && strncmp(said, "ok", 2))
		snprintf(f->detail + length, sizeof(f->detail) - length, ": %.*s", (int)strcspn(said, "\n"), said);
	return -1;
}

static int compare(const struct monitor *m, const struct wanted *w, int group, struct failure *f)
{
	static char has[8192];
	char step[16];

	if (read_at(group, "schemata", has, sizeof(has)) <= 0)
		return fail(f, "find the class", "`%.128s` has no `schemata`", w->class);
	if (read_at(m->resctrl, "info/MB/bandwidth_gran", step, sizeof(step)) <= 0)
		step[0] = '\0';
	errno = EBUSY;
	for (const char *line = w->line; line < w->end; line = next(line))
		if (!schemata_hold(has, line, (unsigned)atoi(step)))
			return fail(f, "compare the class", "`%.100s` is there and has not `%.100s`", w->class, line);
	return 0;
}

/* Only what is there already: nothing is changed. Whether the class is, is `group`. */
static int look(struct monitor *m, const struct wanted *w, const char *own, int group, struct failure *f)
{
	char path[PRIV_PATH + 16];

	snprintf(path, sizeof(path), "mon_groups/%s", own);
	errno = EEXIST;
	if (group >= 0 && w->own)
		return fail(f, "find the class", "`%.128s`", own);
	if (group >= 0 && w->monitored && !faccessat(group, path, F_OK, 0)) {
		errno = EEXIST;
		return fail(f, "find the class", "`%.128s`", path);
	}
	errno = ENOENT;
	if (group < 0 && !w->own && w->line == w->end)
		return fail(f, "find the class", "`%.128s`", w->class);
	return group < 0 || w->line == w->end ? 0 : compare(m, w, group, f);
}

static int make(struct monitor *m, const struct wanted *w, const char *name, int *group, struct failure *f)
{
	struct priv_group_create create = {0};
	struct priv_group_set set;

	snprintf(create.name, sizeof(create.name), "%s", name);
	if (PRIV_CALL(PRIV_GROUP_CREATE, &create, group, f, m->resctrl))
		return refused(m, f);
	for (const char *line = w->line; line < w->end; line = next(line)) {
		set = (struct priv_group_set){0};
		snprintf(set.line, sizeof(set.line), "%s", line);
		if (PRIV_CALL(PRIV_GROUP_SET, &set, NULL, f, *group))
			return refused(m, f);
	}
	/* one with a name is everybody's from now on, and stays */
	return w->own || !record(w, name, false) ? 0 : fail(f, "make the class", "write down that it is made");
}

static int watch(struct monitor *m, int group, const char *own, int *made, struct failure *f)
{
	struct priv_group_create create = {0};
	OWNED int groups = openat(group, "mon_groups", GROUP);

	snprintf(create.name, sizeof(create.name), "%s", own);
	if (groups < 0)
		return fail(f, "make the class", "this CPU counts nothing for it");
	return PRIV_CALL(PRIV_GROUP_CREATE, &create, made, f, groups) ? refused(m, f) : 0;
}

static int enter(struct monitor *m, const struct wanted *w, struct failure *f)
{
	char own[PRIV_PATH];
	const char *name = w->own ? own : w->class;
	OWNED int group = -1, watched = -1;
	struct failure ignored;
	bool failed;

	own_name(m, own);
	group = openat(m->resctrl, !strcmp(name, "/") ? "." : name, GROUP);
	if (look(m, w, own, group, f))
		return -1;
	if (record(w, name, group < 0))
		return fail(f, "make the class", "write down what is made");
	failed = (group < 0 && make(m, w, name, &group, f)) || (w->monitored && watch(m, group, own, &watched, f));
	if (!failed && move(m, group, watched, f)) {
		failed = true;
		(void)move(m, m->resctrl, -1, &ignored);
	}
	if (failed) {
		resctrl_repair(m);
		return -1;
	}
	m->group[0] = take_fd(&group);
	m->group[1] = take_fd(&watched);
	return 0;
}

int resctrl_place(struct monitor *m, struct part *p, struct failure *f)
{
	struct wanted w;

	return m->group[0] >= 0 || (understood(p, &w) && !enter(m, &w, f)) ? 0 : -1;
}

int resctrl_withdraw(struct monitor *m, struct part *p, struct failure *f)
{
	if (p->placed && !another(m, p, true)) {
		if (move(m, m->resctrl, -1, f))
			return -1;
		close_fd(&m->group[0]);
		close_fd(&m->group[1]);
		resctrl_repair(m);
	}
	if (!another(m, p, false))
		close_fd(&m->resctrl); /* which could not be mounted otherwise as long as we have it */
	return 0;
}

size_t resctrl_tasks(const struct monitor *m, int fds[2])
{
	size_t count = 0;

	for (size_t i = 0; i < ARRAY_SIZE(m->group) && m->group[i] >= 0; i++)
		if ((fds[count] = openat(m->group[i], "tasks", O_WRONLY | O_CLOEXEC | O_NOFOLLOW)) >= 0)
			count++;
	return count;
}

static void remove_group(int parent, const char *name)
{
	struct priv_group_remove request = {0};
	struct failure ignored;

	snprintf(request.name, sizeof(request.name), "%s", name);
	PRIV_CALL(PRIV_GROUP_REMOVE, &request, NULL, &ignored, parent);
}

void resctrl_repair(struct monitor *m)
{
	char text[3 * PRIV_PATH], own[PRIV_PATH], *cursor = text, *field[5];

	if (read_at(FD_RUN, "resctrl", text, sizeof(text)) > 0 &&
	    flat_row(&cursor, field, ARRAY_SIZE(field)) == ARRAY_SIZE(field)) {
		OWNED int groups = -1;
		char path[PRIV_PATH + 16];

		if (m->resctrl < 0) /* of a dead monitor's; ours has it as long as there is a record */
			m->resctrl = open(field[1], GROUP);
		own_name(m, own);
		snprintf(path, sizeof(path), "%.255s/mon_groups", !strcmp(field[2], "/") ? "." : field[2]);
		groups = field[4][0] ? openat(m->resctrl, path, GROUP) : -1;
		if (groups >= 0)
			remove_group(groups, own);
		if (!strcmp(field[3], "own"))
			remove_group(m->resctrl, field[2]);
	}
	unlinkat(FD_RUN, "resctrl", 0);
	unlinkat(FD_RUN, "resctrl.new", 0);
}
