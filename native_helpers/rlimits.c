/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Resource limits of a running instance, and how likely it is killed when memory runs out: of its processes as they are
 * now, and of commands that come later. */
#include "monitor.h"

#include <sys/resource.h>

#define PASSES 8 /* over those who do not stand still: some would set themselves back for ever */

struct change {
	int resource;
	struct rlimit before, after;
	bool changed;
	int passes;
};

/* Whoever a process makes has what that has: all stand still meanwhile, so that none is missed. */
struct pause {
	bool ours;
	int passes;
};

static struct pause pause_all(struct monitor *m)
{
	struct failure ignored;
	bool was = cgroups_frozen(m), ours = !was && !cgroups_freeze(m, true, &ignored);

	return (struct pause){ours, was || ours ? 1 : PASSES};
}

static void go_on(struct monitor *m, const struct pause *p)
{
	struct failure ignored;

	if (p->ours)
		cgroups_freeze(m, false, &ignored);
}

static bool same(const struct rlimit *one, const struct rlimit *other)
{
	return one->rlim_cur == other->rlim_cur && one->rlim_max == other->rlim_max;
}

static void text(char *out, size_t size, rlim_t value)
{
	if (value == RLIM_INFINITY)
		snprintf(out, size, "unlimited");
	else
		snprintf(out, size, "%llu", (unsigned long long)value);
}

/* One that has limited itself otherwise keeps that. */
static int visit(pid_t pid, void *data)
{
	struct change *c = data;
	struct rlimit now;

	if (!prlimit(pid, c->resource, NULL, &now) && same(&now, &c->before) &&
	    !prlimit(pid, c->resource, &c->after, NULL))
		c->changed = true;
	return 0;
}

/* prlimit(2) has nothing but numbers. */
static int change_members(struct monitor *m, void *data, struct failure *f)
{
	struct change *c = data;

	(void)f;
	do {
		c->changed = false;
		cgroups_each(m, visit, c);
	} while (c->changed && --c->passes);
	return 0;
}

static int change_all(struct monitor *m, struct change *c, struct failure *f)
{
	struct pause p = pause_all(m);
	int failed;

	c->passes = p.passes;
	failed = members_inside(m, change_members, c, f);
	go_on(m, &p);
	return failed;
}

/* For ctrmgr-exec, which knows the plan of the start. */
static void remember(struct monitor *m, unsigned resource, const struct rlimit *limit, const char *name,
		     const char *soft, const char *hard)
{
	struct confinement *c = &m->plan.confinement;
	size_t i = 0;

	snprintf(m->rlimit[resource], sizeof(m->rlimit[resource]), "@rlimit %.15s %.24s %.24s", name, soft, hard);
	while (i < c->rlimit_count && c->rlimits[i].resource != resource)
		i++;
	c->rlimits[i].resource = resource;
	c->rlimits[i].limit = *limit;
	c->rlimit_count += i == c->rlimit_count;
}

int rlimit_set(struct monitor *m, const char *name, const char *value, struct failure *f)
{
	struct confinement wanted = {0};
	char kept[CTL_NAME_MAX], soft[CTL_NAME_MAX], soft_before[24], hard_before[24], *hard;
	struct change c = {0};

	snprintf(kept, sizeof(kept), "%.63s", name);
	snprintf(soft, sizeof(soft), "%.63s", value);
	hard = strchr(soft, ':');
	errno = EINVAL;
	if (hard)
		*hard++ = '\0';
	if (!hard || confine_row(&wanted, (char *[]){"rlimit", kept, soft, hard}, 4) != 1)
		return fail(f, "set a resource limit", "`%.63s` to `%.100s`", name, value);
	c.resource = (int)wanted.rlimits[0].resource;
	c.after = wanted.rlimits[0].limit;
	if (prlimit(m->init, c.resource, NULL, &c.before))
		return fail(f, "set a resource limit", "`%.63s`: of init", name);
	text(soft_before, sizeof(soft_before), c.before.rlim_cur);
	text(hard_before, sizeof(hard_before), c.before.rlim_max);
	snprintf(f->detail, sizeof(f->detail), "%s:%s", soft_before, hard_before);
	if (prlimit(m->init, c.resource, &c.after, NULL))
		return fail(f, "set a resource limit", "`%.63s` to `%.100s`", name, value);
	if (!same(&c.before, &c.after) && change_all(m, &c, f)) {
		(void)prlimit(m->init, c.resource, &c.before, NULL);
		return -1;
	}
	remember(m, wanted.rlimits[0].resource, &c.after, kept, soft, hard);
	return 0;
}

struct priority {
	const struct monitor *m;
	const struct confinement *wanted;
	const char *before;
	bool changed;
};

/* -1, with errno; `text` without the line's end. */
static int oom_read(int proc, const char *pid, char *text, size_t size)
{
	char path[40];

	snprintf(path, sizeof(path), "%.20s/oom_score_adj", pid);
	if (read_at(proc, path, text, size) <= 0)
		return -1;
	text[strcspn(text, "\n")] = '\0';
	return 0;
}

/* One that has chosen otherwise for itself keeps that. The number may be another's by now: whose folder it is, is
 * asked.
 */
static int visit_oom(pid_t pid, void *data)
{
	struct priority *p = data;
	char name[12], now[12];
	OWNED int process = -1;

	snprintf(name, sizeof(name), "%d", pid);
	process = openat(p->m->proc, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (process >= 0 && members_have(p->m, process) && !oom_read(process, ".", now, sizeof(now)) &&
	    !strcmp(now, p->before) && !confine_oom(p->wanted, process, "."))
		p->changed = true;
	return 0;
}

int oom_set(struct monitor *m, const char *value, struct failure *f)
{
	struct confinement wanted = {0};
	char number[12], before[12], init[12];
	struct priority p = {.m = m, .wanted = &wanted, .before = before};

	snprintf(init, sizeof(init), "%d", m->init);
	snprintf(number, sizeof(number), "%.11s", value);
	if (oom_read(m->proc, init, before, sizeof(before)) ||
	    (!*number && oom_read(m->proc, "self", number, sizeof(number))))
		return fail(f, "set `oom_score_adj`", "of init");
	errno = EINVAL;
	if (confine_row(&wanted, (char *[]){"oom-score-adj", number}, 2) != 1)
		return fail(f, "set `oom_score_adj`", "to `%.100s`", value);
	snprintf(f->detail, sizeof(f->detail), "%s", before);
	errno = -confine_oom(&wanted, m->proc, init);
	if (errno)
		return fail(f, "set `oom_score_adj`", "to `%s`", number);
	if (strcmp(before, number)) {
		struct pause still = pause_all(m);

		do {
			p.changed = false;
			cgroups_each(m, visit_oom, &p);
		} while (p.changed && --still.passes);
		go_on(m, &still);
	}
	snprintf(m->oom, sizeof(m->oom), "@oom-score-adj %d", wanted.oom_score_adj);
	m->plan.confinement.adjusts_oom = true;
	m->plan.confinement.oom_score_adj = wanted.oom_score_adj;
	return 0;
}
