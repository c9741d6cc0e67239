/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * The rows of a plan of which devices are made. */
#include "control.h"
#include "plan_rows.h"

static bool access_letters(const char *text, uint32_t *access)
{
	for (*access = 0; *text; text++)
		if (*text == 'r')
			*access |= CTL_READ;
		else if (*text == 'w')
			*access |= CTL_WRITE;
		else if (*text == 'm')
			*access |= CTL_MKNOD;
		else
			return false;
	return *access != 0;
}

static bool device_row(struct plan *p, char **field)
{
	static const char *const types[] = {"char", "block", NULL};
	static const char *const needs[] = {"optional", "required", NULL};
	struct plan_device *d = &p->device[p->devices];
	unsigned type, need;

	if (p->devices == PLAN_DEVICES || !word(field[2], types, &type) || !word(field[9], needs, &need))
		return false;
	p->devices++;
	*d = (struct plan_device){.name = field[1],
				  .source = field[3],
				  .path = field[4],
				  .user = field[5],
				  .group = field[6],
				  .block = type == 1,
				  .required = need == 1};
	return strlen(d->name) < CTL_NAME_MAX && d->source[0] == '/' && plain_below(d->path, "/dev/", CTL_PATH_MAX) &&
	       strlen(d->user) < CTL_NAME_MAX && strlen(d->group) < CTL_NAME_MAX && number32(field[7], 8, &d->mode) &&
	       d->mode <= 0777 && access_letters(field[8], &d->access);
}

/* What every mount from the host is, is accepted and changes nothing. */
static bool bind_options(char *text, uint32_t *access, bool *required)
{
	static const char *const words[] = {"nosuid",   "nodev", "ro",        "rw", "noexec",
					    "optional", "shift", "recursive", NULL};
	char *option;
	unsigned index;

	while ((option = strsep(&text, ","))) {
		if (!word(option, words, &index))
			return false;
		if (!strcmp(option, "rw"))
			*access |= CTL_WRITE;
		else if (!strcmp(option, "noexec"))
			*access &= ~(uint32_t)CTL_EXEC;
		else if (!strcmp(option, "shift"))
			*access |= CTL_SHIFT;
		else if (!strcmp(option, "recursive"))
			*access |= CTL_RECURSIVE;
		else if (!strcmp(option, "optional"))
			*required = false;
	}
	return true;
}

static bool bind_row(struct plan *p, char **field)
{
	struct plan_bind *b = &p->bind[p->binds];

	if (p->binds == PLAN_BINDS)
		return false;
	p->binds++;
	*b = (struct plan_bind){.name = field[1],
				.source = field[2],
				.target = field[3],
				.access = CTL_READ | CTL_EXEC,
				.required = true};
	return strlen(b->name) < CTL_NAME_MAX && b->source[0] == '/' && plain_below(b->target, "/", CTL_PATH_MAX) &&
	       bind_options(field[4], &b->access, &b->required);
}

static bool filesystem_row(struct plan *p, char **field)
{
	struct plan_filesystem *s = &p->filesystem[p->filesystems];

	if (p->filesystems == PLAN_DISKS)
		return false;
	p->filesystems++;
	*s = (struct plan_filesystem){.name = field[1],
				      .type = field[2],
				      .source = field[3],
				      .target = field[4],
				      .data = field[6],
				      .access = CTL_READ | CTL_EXEC,
				      .required = true};
	return strlen(s->name) < CTL_NAME_MAX && strlen(s->type) < CTL_NAME_MAX && strlen(s->data) < CTL_PATH_MAX &&
	       strlen(s->source) < CTL_PATH_MAX && plain_below(s->target, "/", CTL_PATH_MAX) &&
	       bind_options(field[5], &s->access, &s->required) && !(s->access & CTL_RECURSIVE);
}

static bool group_row(struct plan *p, char **field)
{
	if (p->groups == PLAN_GROUPS)
		return false;
	p->group[p->groups].name = field[1];
	return strlen(field[1]) < CTL_NAME_MAX && number32(field[2], 10, &p->group[p->groups++].gid);
}

/* The key has no escapes, so that its value follows at once in the plan's text. */
static bool device_env_row(struct plan *p, char **field)
{
	struct plan_device_env *e = &p->device_env[p->device_envs];
	size_t length = strlen(field[2]);

	if (p->device_envs == PLAN_WORDS || strlen(field[1]) >= CTL_NAME_MAX || strchr(field[2], '=') ||
	    !plan_variable(field[2]) || length + strlen(field[3]) + 2 > CTL_TEXT_MAX)
		return false;
	field[2][length] = '=';
	*e = (struct plan_device_env){field[1], field[2]};
	p->device_envs++;
	return field[2] + length + 1 == field[3];
}

static bool share_row(struct plan *p, char **field)
{
	if (p->shares == PLAN_DEVICES)
		return false;
	p->share[p->shares++] = (struct plan_share){field[1], field[2]};
	return strlen(field[1]) < CTL_NAME_MAX && plain_below(field[2], "/", CTL_PATH_MAX);
}

/* The rest of a row; how long it is as ended strings. */
static size_t words_of(char **word, size_t *words, char **field, size_t count)
{
	size_t size = 0;

	for (*words = 0; *words < count; ++*words) {
		word[*words] = field[*words];
		size += strlen(field[*words]) + 1;
	}
	return size;
}

static bool hook_row(struct plan_hook *list, size_t *rows, size_t max, char **field, size_t count)
{
	struct plan_hook *h = &list[*rows];

	if (*rows == max || count < 4 || count > 2 + PLAN_HOOK_ARGS || strlen(field[1]) >= CTL_NAME_MAX)
		return false;
	++*rows;
	h->name = field[1];
	return words_of(h->word, &h->words, field + 2, count - 2) <= CTL_TEXT_MAX;
}

static bool rule_row(struct plan *p, char **field, size_t count)
{
	struct plan_rule *r = &p->rule[p->rules];

	if (p->rules == PLAN_RULES || count < 7 || strlen(field[1]) >= CTL_NAME_MAX || !field[6][0] ||
	    strlen(field[2]) >= CTL_NAME_MAX || strlen(field[3]) >= CTL_NAME_MAX)
		return false;
	p->rules++;
	r->name = field[1];
	r->user = field[2];
	r->group = field[3];
	return words_of(r->word, &r->words, field + 6, count - 6) <= CTL_TEXT_MAX && number32(field[4], 8, &r->mode) &&
	       r->mode <= 0777 && access_letters(field[5], &r->access);
}

static bool netdev_row(struct plan *p, char **field)
{
	static const char *const needs[] = {"optional", "required", NULL};
	struct plan_netdev *d = &p->netdev[p->netdevs];
	unsigned need;

	if (p->netdevs == PLAN_NETDEVS || !word(field[6], needs, &need))
		return false;
	p->netdevs++;
	*d = (struct plan_netdev){
		.name = field[1], .parent = field[2], .inside = field[3], .address = field[4], .required = need == 1};
	return strlen(d->name) < CTL_NAME_MAX && plain_path(d->parent, 16) && plain_path(d->inside, 16) &&
	       strlen(d->address) < 3 * 32 && number32(field[5], 10, &d->mtu);
}

static bool rdma_row(struct plan *p, char **field)
{
	if (p->rdmas == PLAN_NETDEVS)
		return false;
	p->rdma[p->rdmas++] = (struct plan_share){field[1], field[2]};
	return strlen(field[1]) < CTL_NAME_MAX && plain_path(field[2], CTL_NAME_MAX);
}

int plan_device_row(struct plan *p, char **field, size_t count)
{
	const char *key = field[0];

	if (!strcmp(key, "device"))
		return count == 10 && device_row(p, field);
	if (!strcmp(key, "bind"))
		return count == 5 && bind_row(p, field);
	if (!strcmp(key, "filesystem"))
		return count == 7 && filesystem_row(p, field);
	if (!strcmp(key, "device-group"))
		return count == 3 && group_row(p, field);
	if (!strcmp(key, "device-env"))
		return count == 4 && device_env_row(p, field);
	if (!strcmp(key, "hook"))
		return hook_row(p->hook, &p->hooks, PLAN_HOOKS, field, count);
	if (!strcmp(key, "resctrl"))
		return count > 4 && field[3][0] == '/' && hook_row(p->class, &p->classes, PLAN_CLASSES, field, count);
	if (!strcmp(key, "hotplug") || !strcmp(key, "shares"))
		return key[0] == 'h' ? rule_row(p, field, count) : count == 3 && share_row(p, field);
	if (!strcmp(key, "netdev"))
		return count == 7 && netdev_row(p, field);
	if (!strcmp(key, "rdma"))
		return count == 3 && rdma_row(p, field);
	return -1;
}
