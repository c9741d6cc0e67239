/* SPDX-License-Identifier: GPL-3.0-or-later */
#include "plan.h"

#include "control.h"
#include "flat.h"
#include "plan_rows.h"

static bool append(char **list, size_t *count, size_t max, char *value)
{
	if (*count == max)
		return false;
	list[(*count)++] = value;
	return true;
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
	int known;

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
	/* for whoever makes and checks the plan; nothing of it is ours */
	if (!strcmp(key, "identity") || !strcmp(key, "lease") || !strcmp(key, "left-out"))
		return count == 4;
	if (!strcmp(key, "request") || !strcmp(key, "gpu-limit"))
		return count == 6;
	if (!strcmp(key, "vf-guid"))
		return count == 5;
	if (!strcmp(key, "gpu-default"))
		return count == 3;
	if (!strcmp(key, "follows-devices"))
		return count == 2;
	if (!strcmp(key, "host-hook"))
		return p->host_hooks++, count > 6;
	known = plan_device_row(p, field, count);
	if (known >= 0)
		return known;
	known = confine_row(&p->confinement, field, count);
	return known > 0 ? 1 : known < 0 ? 0 : -1;
}

int plan_parse(struct plan *plan, char *text, struct failure *f)
{
	char *field[PLAN_FIELDS], *cursor = text;
	int count, line = 0, known;
	bool ended = flat_counted(text);

	plan->halt_signal = 15;
	plan->stop_timeout = 30;
	plan->confinement.capabilities = CONFINEMENT_NONE.capabilities;
	plan->console_size = 1 << 20;
	plan->priority = UINT32_MAX;
	errno = EINVAL;
	while ((count = flat_row(&cursor, field, PLAN_FIELDS)) > 0) {
		line++;
		if (line == 1) {
			if (count != 2 || strcmp(field[0], "ctrmgr-plan") || strcmp(field[1], "1"))
				return fail(f, "read the plan", "it is not a run plan of version 1");
			continue;
		}
		known = row(plan, field, (size_t)count);
		errno = EINVAL;
		if (known < 0 && count == 1 && !strcmp(field[0], "end"))
			continue;
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
