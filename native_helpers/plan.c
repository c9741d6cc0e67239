/* SPDX-License-Identifier: GPL-3.0-or-later */
#include "plan.h"

#include "control.h"
#include "flat.h"

#include <stdlib.h>

#define FIELDS (6 + PLAN_HOOK_ARGS) /* of a rule: key, name, owner, group, mode, access and words */

static bool number(const char *text, int base, uint64_t max, uint64_t *out)
{
	char *end;

	if (text[0] < '0' || text[0] > '9')
		return false;
	errno = 0;
	*out = strtoull(text, &end, base);
	return !errno && !*end && *out <= max;
}

static bool number32(const char *text, int base, uint32_t *out)
{
	uint64_t wide;

	if (!number(text, base, UINT32_MAX, &wide))
		return false;
	*out = (uint32_t)wide;
	return true;
}

static bool word(const char *text, const char *const *words, unsigned *index)
{
	for (*index = 0; words[*index]; ++*index)
		if (!strcmp(text, words[*index]))
			return true;
	return false;
}

static bool append(char **list, size_t *count, size_t max, char *value)
{
	if (*count == max)
		return false;
	list[(*count)++] = value;
	return true;
}

static bool plain_below(const char *path, const char *folder, size_t size)
{
	size_t length = strlen(folder);

	return !strncmp(path, folder, length) && plain_path(path + length, size - length);
}

/* What is covered must be of the kernel's own: a cover anywhere else would be the image's files. And a cgroup with
 * something over it cannot be removed. */
static bool cover_row(char **list, size_t *count, char *path)
{
	return strncmp(path, "/sys/fs/cgroup", strlen("/sys/fs/cgroup")) &&
	       (plain_below(path, "/proc/", CTL_PATH_MAX) || plain_below(path, "/sys/", CTL_PATH_MAX)) &&
	       append(list, count, PLAN_PATHS, path);
}

static bool id_row(struct id_map *map, size_t *count, char **field)
{
	struct id_map *row = &map[*count];

	if (*count == PLAN_MAPS)
		return false;
	++*count;
	return number32(field[1], 10, &row->inside) && number32(field[2], 10, &row->outside) &&
	       number32(field[3], 10, &row->count) && row->count > 0 &&
	       (uint64_t)row->outside + row->count <= UINT32_MAX && (uint64_t)row->inside + row->count <= UINT32_MAX;
}

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
static bool bind_options(char *text, struct plan_bind *b)
{
	static const char *const words[] = {"nosuid", "nodev", "ro", "rw", "noexec", "optional", NULL};
	char *option;
	unsigned index;

	while ((option = strsep(&text, ","))) {
		if (!word(option, words, &index))
			return false;
		if (!strcmp(option, "rw"))
			b->access |= CTL_WRITE;
		else if (!strcmp(option, "noexec"))
			b->access &= ~(uint32_t)CTL_EXEC;
		else if (!strcmp(option, "optional"))
			b->required = false;
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
	       bind_options(field[4], b);
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

static bool hook_row(struct plan *p, char **field, size_t count)
{
	struct plan_hook *h = &p->hook[p->hooks];

	if (p->hooks == PLAN_HOOKS || count < 4 || count > 2 + PLAN_HOOK_ARGS || strlen(field[1]) >= CTL_NAME_MAX)
		return false;
	p->hooks++;
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

static bool file_row(struct plan *p, char **field)
{
	if (p->files == PLAN_FILES || strchr(field[1], '/') || strchr(field[2], '/') ||
	    !plain_path(field[1], CTL_NAME_MAX) || !plain_path(field[2], CTL_NAME_MAX) ||
	    strlen(field[3]) >= CTL_PATH_MAX)
		return false;
	p->file[p->files++] = (struct plan_file){field[1], field[2], field[3]};
	return true;
}

static bool sysctl_row(struct plan *p, char **field)
{
	if (p->sysctls == PLAN_SYSCTLS || !plain_path(field[1], CTL_PATH_MAX) || strlen(field[2]) >= CTL_PATH_MAX)
		return false;
	p->sysctl[p->sysctls++] = (struct plan_sysctl){field[1], field[2]};
	return true;
}

static bool link_row(struct plan *p, char **field)
{
	p->bridge = field[1];
	p->host_link = field[2];
	p->inner_link = field[3];
	p->mac = field[4];
	return number32(field[5], 10, &p->mtu);
}

static bool link_limit_row(struct plan *p, char **field)
{
	return number(field[2], 10, UINT64_MAX, &p->ingress) && number(field[3], 10, UINT64_MAX, &p->egress) &&
	       number32(field[4], 10, &p->priority);
}

static bool address_row(struct plan_address *list, size_t *count, size_t max, char **field, bool prefix)
{
	struct plan_address *a = &list[*count];

	if (*count == max || (strcmp(field[1], "4") && strcmp(field[1], "6")))
		return false;
	++*count;
	*a = (struct plan_address){.family = field[1][0] - '0', .address = field[2]};
	return !prefix || (number32(field[3], 10, &a->prefix) && a->prefix <= (a->family == 4 ? 32 : 128));
}

static bool scalar(struct plan *p, char **field)
{
	static const char *const nets[] = {"none", "host", "bridge", NULL};
	static const char *const restarts[] = {"no", "always", "on-failure", NULL};
	const char *key = field[0];
	unsigned index = 0;
	uint32_t n = 0;

	if (!strcmp(key, "net")) {
		bool known = word(field[1], nets, &index);

		p->net = (enum plan_net)index;
		return known;
	}
	if (!strcmp(key, "restart")) {
		bool known = word(field[1], restarts, &index);

		p->restart = (enum plan_restart)index;
		return known;
	}
	if (!strcmp(key, "console-size"))
		return number(field[1], 10, UINT64_MAX, &p->console_size);
	if (!number32(field[1], 10, &n))
		return false;
	if (!strcmp(key, "shifted"))
		p->shifted = n;
	else if (!strcmp(key, "nesting"))
		p->nesting = n;
	else if (!strcmp(key, "halt-signal"))
		p->halt_signal = (int)n;
	else
		p->stop_timeout = n;
	return strcmp(key, "halt-signal") || (n >= 1 && n <= 64);
}

/* 1: known and right; 0: wrong; -1: unknown. `count` includes the key. */
static int row(struct plan *p, char **field, size_t count)
{
	static const struct {
		const char *key;
		size_t offset;
	} strings[] = {{"name", offsetof(struct plan, name)},
		       {"hostname", offsetof(struct plan, hostname)},
		       {"cgroup", offsetof(struct plan, cgroup)},
		       {"init", offsetof(struct plan, init)}};
	static const char *const scalars[] = {"net",     "restart",     "console-size", "shifted",
					      "nesting", "halt-signal", "stop-timeout", NULL};
	const char *key = field[0];
	unsigned index;

	for (size_t i = 0; i < ARRAY_SIZE(strings); i++)
		if (!strcmp(key, strings[i].key)) {
			*(char **)((char *)p + strings[i].offset) = field[1];
			return count == 2 && field[1][0] &&
			       (strcmp(key, "cgroup") || plain_path(field[1], CTL_PATH_MAX));
		}
	if (word(key, scalars, &index))
		return count == 2 && scalar(p, field);
	if (!strcmp(key, "uidmap"))
		return count == 4 && id_row(p->uid, &p->uids, field);
	if (!strcmp(key, "gidmap"))
		return count == 4 && id_row(p->gid, &p->gids, field);
	if (!strcmp(key, "layer"))
		return count == 2 && field[1][0] == '/' && append(p->layer, &p->layers, PLAN_LAYERS, field[1]);
	if (!strcmp(key, "cgroup-file"))
		return count == 4 && file_row(p, field);
	if (!strcmp(key, "device-limit"))
		return count == 5 && file_row(p, field + 1);
	if (!strcmp(key, "link"))
		return count == 6 && link_row(p, field);
	if (!strcmp(key, "sysctl"))
		return count == 3 && sysctl_row(p, field);
	if (!strcmp(key, "link-limit"))
		return count == 5 && link_limit_row(p, field);
	if (!strcmp(key, "address"))
		return count == 4 && address_row(p->address, &p->addresses, PLAN_ADDRESSES, field, true);
	if (!strcmp(key, "gateway"))
		return count == 3 && address_row(p->gateway, &p->gateways, PLAN_GATEWAYS, field, false);
	if (!strcmp(key, "arg"))
		return count == 2 && append(p->argument, &p->arguments, PLAN_WORDS - 2, field[1]);
	if (!strcmp(key, "env"))
		return count == 2 && strchr(field[1], '=') && append(p->env, &p->envs, PLAN_WORDS - 1, field[1]);
	if (!strcmp(key, "mask"))
		return count == 2 && cover_row(p->mask, &p->masks, field[1]);
	if (!strcmp(key, "readonly"))
		return count == 2 && cover_row(p->readonly, &p->readonlys, field[1]);
	if (!strcmp(key, "device"))
		return count == 10 && device_row(p, field);
	if (!strcmp(key, "bind"))
		return count == 5 && bind_row(p, field);
	if (!strcmp(key, "device-env"))
		return count == 4 && device_env_row(p, field);
	if (!strcmp(key, "hook"))
		return hook_row(p, field, count);
	if (!strcmp(key, "hotplug") || !strcmp(key, "shares"))
		return key[0] == 'h' ? rule_row(p, field, count) : count == 3 && share_row(p, field);
	/* for whoever makes and checks the plan; nothing of it is ours */
	if (!strcmp(key, "identity") || !strcmp(key, "lease"))
		return count == 4;
	if (!strcmp(key, "request"))
		return count == 6;
	index = (unsigned)confine_row(&p->confinement, field, count);
	return (int)index > 0 ? 1 : (int)index < 0 ? 0 : -1;
}

int plan_parse(struct plan *plan, char *text, struct failure *f)
{
	char *field[FIELDS], *cursor = text;
	int count, line = 0, known;
	bool ended = false;

	plan->halt_signal = 15;
	plan->stop_timeout = 30;
	plan->confinement.capabilities = CONFINEMENT_NONE.capabilities;
	plan->console_size = 1 << 20;
	plan->priority = UINT32_MAX;
	errno = EINVAL;
	while ((count = flat_row(&cursor, field, FIELDS)) > 0) {
		line++;
		if (line == 1) {
			if (count != 2 || strcmp(field[0], "ctrmgr-plan") || strcmp(field[1], "1"))
				return fail(f, "read the plan", "it is not a run plan of version 1");
			continue;
		}
		known = ended ? 0 : row(plan, field, (size_t)count);
		errno = EINVAL;
		if (known < 0 && count == 1 && !strcmp(field[0], "end")) {
			ended = true;
			continue;
		}
		if (known <= 0)
			return fail(f, "read the plan", known ? "line %d: unknown key `%s`" : "line %d: wrong `%s`",
				    line, field[0]);
	}
	if (count < 0)
		return fail(f, "read the plan", "line %d cannot be read", line + 1);
	/* without its last lines it would still be a plan, of an instance without seccomp */
	if (!ended)
		return fail(f, "read the plan", "it is cut off after line %d", line);
	if (!plan->name || !plan->cgroup || !plan->init || !plan->layers || !plan->uids || !plan->gids)
		return fail(f, "read the plan", "it lacks a name, cgroup, init, layer or id map");
	if (plan->net == NET_BRIDGE && !plan->bridge)
		return fail(f, "read the plan", "it has a bridged network without a link");
	errno = 0;
	return 0;
}
