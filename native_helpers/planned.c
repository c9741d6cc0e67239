/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * The devices of a plan, given before init runs: all their parts in one transaction. */
#include "start.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>

static int of_device(const char *name, struct failure *f)
{
	char said[sizeof(f->detail)];

	memcpy(said, f->detail, sizeof(said));
	snprintf(f->detail, sizeof(f->detail), "device `%.63s`: %.180s", name, said);
	return -1;
}

static int plan_nodes(struct start *s, struct failure *f)
{
	const struct plan *p = &s->m->plan;

	for (size_t i = 0; i < p->devices; i++) {
		const struct plan_device *d = &p->device[i];
		struct ctl_device c = {.type = d->block ? CTL_BLOCK : CTL_CHAR, .mode = d->mode, .access = d->access};
		struct stat host;

		if (s->device[i] < 0)
			continue;
		if (fstat(s->device[i], &host))
			return fail(f, "open the device", "`%s`", d->source);
		c.major = major(host.st_rdev);
		c.minor = minor(host.st_rdev);
		snprintf(c.name, sizeof(c.name), "%.63s", d->name);
		snprintf(c.path, sizeof(c.path), "%.255s", d->path);
		snprintf(c.user, sizeof(c.user), "%.63s", d->user);
		snprintf(c.group, sizeof(c.group), "%.63s", d->group);
		if (part_prepare(s->m, &c, STARTING, s->device[i], "", 0, f))
			return of_device(d->name, f);
	}
	return 0;
}

static int plan_text(struct start *s, const char *name, uint32_t type, const char *text, size_t size, struct failure *f)
{
	struct ctl_device c = {.type = type};

	snprintf(c.name, sizeof(c.name), "%.63s", name);
	return part_prepare(s->m, &c, STARTING, -1, text, size, f) ? of_device(name, f) : 0;
}

/* Words that each end. Not on the stack, whose pages would stay. */
static const char *joined(char *const *word, size_t words, size_t *size)
{
	static char text[CTL_TEXT_MAX];

	*size = 0;
	for (size_t n = 0; n < words; n++)
		*size += (size_t)snprintf(text + *size, sizeof(text) - *size, "%s", word[n]) + 1;
	return text;
}

static int plan_words(struct start *s, const struct plan_hook *list, size_t count, uint32_t type, struct failure *f)
{
	for (const struct plan_hook *h = list; h < list + count; h++) {
		size_t size;
		const char *text = joined(h->word, h->words, &size);

		if (h->name && plan_text(s, h->name, type, text, size, f))
			return -1;
	}
	return 0;
}

static int plan_rules(struct start *s, struct failure *f)
{
	const struct plan *p = &s->m->plan;

	for (size_t i = 0; i < p->rules; i++) {
		const struct plan_rule *r = &p->rule[i];
		struct ctl_device c = {.type = CTL_RULE, .mode = r->mode, .access = r->access};
		size_t size;
		const char *text = joined(r->word, r->words, &size);

		snprintf(c.name, sizeof(c.name), "%.63s", r->name);
		snprintf(c.user, sizeof(c.user), "%.63s", r->user);
		snprintf(c.group, sizeof(c.group), "%.63s", r->group);
		if (part_prepare(s->m, &c, STARTING, -1, text, size, f))
			return of_device(r->name, f);
	}
	return 0;
}

static int plan_word(struct start *s, const struct plan_share *from, uint32_t type, struct failure *f)
{
	struct ctl_device c = {.type = type};

	snprintf(c.name, sizeof(c.name), "%.63s", from->name);
	snprintf(c.path, sizeof(c.path), "%.255s", from->path);
	return part_prepare(s->m, &c, STARTING, -1, "", 0, f) ? of_device(c.name, f) : 0;
}

static int plan_netdev(struct start *s, const struct plan_netdev *d, struct failure *f)
{
	struct ctl_device c = {.type = CTL_NETDEV};
	char text[64 + 3 * 32];
	int size = snprintf(text, sizeof(text), "%s%c%s%c%u", d->parent, 0, d->address, 0, d->mtu) + 1;

	snprintf(c.name, sizeof(c.name), "%.63s", d->name);
	snprintf(c.path, sizeof(c.path), "%.15s", d->inside);
	if (!part_prepare(s->m, &c, STARTING, -1, text, (size_t)size, f))
		return 0;
	if (f->error != ENODEV || d->required)
		return of_device(d->name, f);
	*f = (struct failure){0};
	return 0;
}

int start_devices(struct start *s, struct failure *f)
{
	const struct plan *p = &s->m->plan;

	if (plan_nodes(s, f))
		return -1;
	for (size_t i = 0; i < p->binds; i++) {
		const struct plan_bind *b = &p->bind[i];
		struct ctl_device c = {.type = CTL_BIND, .access = b->access};

		snprintf(c.name, sizeof(c.name), "%.63s", b->name);
		snprintf(c.path, sizeof(c.path), "%.255s", b->target);
		if (s->bind[i] >= 0 && part_prepare(s->m, &c, STARTING, s->bind[i], "", 0, f))
			return of_device(b->name, f);
	}
	for (size_t i = 0; i < p->filesystems; i++) {
		const struct plan_filesystem *x = &p->filesystem[i];
		struct ctl_device c = {.type = CTL_FILESYSTEM, .access = x->access};

		snprintf(c.name, sizeof(c.name), "%.63s", x->name);
		snprintf(c.path, sizeof(c.path), "%.255s", x->target);
		if (s->filesystem[i] >= 0 &&
		    part_prepare(s->m, &c, STARTING, s->filesystem[i], x->type, strlen(x->type) + 1, f))
			return of_device(x->name, f);
	}
	for (size_t i = 0; i < p->device_envs; i++) {
		const struct plan_device_env *e = &p->device_env[i];

		if (e->name && plan_text(s, e->name, CTL_ENV, e->text, strlen(e->text) + 1, f))
			return -1;
	}
	for (size_t i = 0; i < p->groups; i++) {
		char group[16];
		int size = snprintf(group, sizeof(group), "=%u", p->group[i].gid) + 1;

		if (p->group[i].name && plan_text(s, p->group[i].name, CTL_GROUP, group, (size_t)size, f))
			return -1;
	}
	if (plan_words(s, p->hook, p->hooks, CTL_HOOK, f) || plan_words(s, p->class, p->classes, CTL_RESCTRL, f))
		return -1;
	for (size_t i = 0; i < p->netdevs; i++)
		if (plan_netdev(s, &p->netdev[i], f))
			return -1;
	for (size_t i = 0; i < p->rdmas; i++)
		if (plan_word(s, &p->rdma[i], CTL_RDMA, f))
			return -1;
	for (size_t i = 0; i < p->shares; i++)
		if (plan_word(s, &p->share[i], CTL_SHARE, f))
			return -1;
	return plan_rules(s, f) || part_commit(s->m, STARTING, f) ? -1 : 0;
}
