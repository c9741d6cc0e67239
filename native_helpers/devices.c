/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Attaching, detaching and suspending while the instance runs: all parts of a device at once. */
#include "monitor.h"

/* Type, options and name; what is left out is "". */
static bool text_words(const char *text, size_t size, const char **words, size_t count)
{
	if (!size || text[size - 1])
		return false;
	for (size_t i = 0, at = 0; i < count && at < size; i++, at += strlen(text + at) + 1)
		words[i] = text + at;
	return true;
}

static int filesystem_of(struct monitor *m, const struct ctl_device *d, int source, const char *text, size_t size,
			 struct failure *f)
{
	const char *words[3] = {"", "", ""};

	errno = EINVAL;
	if (!text_words(text, size, words, ARRAY_SIZE(words)))
		return fail(f, "read the request", "not a file system");
	return mount_filesystem(m, words, d->access, source, f);
}

int device_part(struct monitor *m, const struct ctl_device *wanted, int client, int source, const char *text,
		size_t size, struct failure *f)
{
	OWNED int mount = -1;

	if (wanted->type != CTL_BIND && wanted->type != CTL_FILESYSTEM)
		return part_prepare(m, wanted, client, source, text, size, f);
	mount = wanted->type == CTL_BIND ? mount_clone(m, wanted->access, source, f)
					 : filesystem_of(m, wanted, source, text, size, f);
	return mount < 0 ? -1 : part_prepare(m, wanted, client, mount, text, size, f);
}

int device_attach(struct monitor *m, const struct ctl_device *wanted, int client, int source, struct failure *f)
{
	return device_part(m, wanted, client, source, "", 0, f) || part_commit(m, client, f) ? -1 : 0;
}

/* All numbers are refused before the first node goes. */
static int refuse_numbers(struct monitor *m, const char *name, struct failure *f)
{
	int failed = 0;

	for (struct part *p = NULL; !failed && (p = part_next(m, name, p));)
		if (p->state == PART_HELD && part_is_node(p) && !part_sharer(m, p)) {
			p->state = PART_SUSPENDED;
			failed = part_filter(m, p, f);
		}
	return failed;
}

/* What another device needs, too, is that one's from now on. */
static void hand_over(struct monitor *m, const char *name)
{
	struct part *sharer;

	for (struct part *p = NULL; (p = part_next(m, name, p));)
		if ((sharer = part_sharer(m, p))) {
			memcpy(p->device.name, sharer->device.name, sizeof(p->device.name));
			part_free(sharer);
		}
}

/* In the other order than they came: directories that were made for the first hold the others. */
static int take_away(struct monitor *m, const char *name, struct failure *f)
{
	hand_over(m, name);
	if (refuse_numbers(m, name, f))
		return -1;
	for (size_t i = m->used; i--;) {
		struct part *p = &m->part[i];

		if (p->state >= PART_HELD && !strcmp(p->device.name, name) && part_withdraw(m, p, f))
			return -1;
	}
	return 0;
}

static void free_all(struct monitor *m, const char *name)
{
	char own[CTL_NAME_MAX]; /* the name may be a part's */

	memcpy(own, name, strlen(name) + 1);
	for (struct part *p; (p = part_next(m, own, NULL));)
		part_free(p);
}

static int suspend_all(struct monitor *m, const char *name, struct failure *f)
{
	if (refuse_numbers(m, name, f))
		return -1;
	for (struct part *p = NULL; (p = part_next(m, name, p));)
		if (p->state == PART_SUSPENDED && part_revoke(m, p, true, f))
			return -1;
	return 0;
}

static void tell_gone(struct monitor *m, const char *name)
{
	for (struct part *p = NULL; (p = part_next(m, name, p));)
		if (p->state == PART_SUSPENDED)
			uevent_node(m, &p->device, false, NULL, 0);
}

int device_resume(struct monitor *m, const char *name, struct failure *f)
{
	size_t resumed = 0;
	struct failure ignored;

	errno = ENOENT;
	if (!part_next(m, name, NULL))
		return fail(f, "resume", "no device `%s` is attached", name);
	for (struct part *p = NULL; (p = part_next(m, name, p));) {
		struct priv_grant request = {.mode = p->device.mode,
					     .uid = plan_map(m->plan.uid, m->plan.uids, p->device.uid),
					     .gid = plan_map(m->plan.gid, m->plan.gids, p->device.gid)};

		if (p->state != PART_SUSPENDED)
			continue;
		p->state = PART_HELD;
		if (part_filter(m, p, f) || PRIV_CALL(PRIV_GRANT, &request, NULL, f, m->dev, p->fd)) {
			suspend_all(m, name, &ignored);
			tell_gone(m, name);
			return -1;
		}
		classes_show(m, &ignored);
		uevent_node(m, &p->device, true, NULL, 0);
		resumed++;
	}
	errno = EALREADY;
	return resumed ? 0 : fail(f, "resume", "it is not suspended");
}

static bool is_suspended(struct monitor *m, const char *name)
{
	for (struct part *p = NULL; (p = part_next(m, name, p));)
		if (p->state == PART_SUSPENDED)
			return true;
	return false;
}

static bool has_nodes(struct monitor *m, const char *name)
{
	for (struct part *p = NULL; (p = part_next(m, name, p));)
		if (part_is_node(p) && !part_sharer(m, p))
			return true;
	return false;
}

static int suspend(struct monitor *m, const char *name, struct failure *f)
{
	struct failure ignored;

	errno = EALREADY;
	if (is_suspended(m, name))
		return fail(f, "suspend", "it is suspended already");
	errno = ENODEV;
	if (!has_nodes(m, name))
		return fail(f, "suspend", "`%s` has no node that could be taken", name);
	if (!suspend_all(m, name, f))
		return 0;
	device_resume(m, name, &ignored);
	return -1;
}

/* Where a program of the instance opened the device before it was taken, the policy says what becomes of it. */
int device_take(struct monitor *m, const char *name, bool for_good, int policy, struct ctl_holder *holders, int *count,
		int *revoked, struct failure *f)
{
	const char *verb = for_good ? "detach" : "suspend";
	struct failure ignored;
	/* A process that opens the device while we look is missed unless all stand still; so is a child that it makes.
	 */
	bool frozen = policy != CTL_REPORT && !cgroups_frozen(m), was_suspended;
	int failed;

	*count = *revoked = 0;
	errno = ENOENT;
	if (!part_next(m, name, NULL))
		return fail(f, verb, "no device `%s` is attached", name);
	if (frozen && cgroups_freeze(m, true, f)) {
		if (policy != CTL_KILL_HOLDERS)
			return -1;
		frozen = false; /* who lives on can have been missed: as good as it gets */
	}
	if (policy == CTL_REFUSE && (*count = holders_find(m, name, holders, NULL, false)) > 0) {
		if (frozen)
			cgroups_freeze(m, false, &ignored);
		errno = EBUSY;
		return fail(f, verb, "%d processes have `%s` open", *count, name);
	}
	was_suspended = is_suspended(m, name);
	failed = for_good ? take_away(m, name, f) : suspend(m, name, f);
	if (failed) {
		if (frozen)
			cgroups_freeze(m, false, &ignored);
		return -1;
	}
	classes_show(m, &ignored); /* what is not held any more is not shown: links go, which cannot fail */
	if (!was_suspended)
		tell_gone(m, name);
	/* by its driver only what will not come back; who is to be killed must still be found */
	*count = holders_find(m, name, holders, for_good && policy != CTL_KILL_HOLDERS ? revoked : NULL,
			      policy == CTL_KILL_HOLDERS);
	if (for_good)
		free_all(m, name);
	if (frozen && (policy != CTL_FREEZE_HOLDERS || !*count))
		cgroups_freeze(m, false, &ignored);
	return 0;
}
