/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * The compiled run plan (docs/concepts/design.md, "The run plan") as one struct.
 * Strings point into the plan's text, which must outlive it. */
#pragma once
#include "common.h"
#include "confine.h"

#define PLAN_LAYERS    32
#define PLAN_MAPS      32
#define PLAN_WORDS     128
#define PLAN_DEVICES   128
#define PLAN_BINDS     128
#define PLAN_DISKS     32
#define PLAN_GROUPS    32
#define PLAN_HOOKS     64
#define PLAN_HOOK_ARGS 48
#define PLAN_FIELDS    (6 + PLAN_HOOK_ARGS) /* of a rule: key, name, owner, group, mode, access and words */
#define PLAN_RULES     32
#define PLAN_NETDEVS   32
#define PLAN_CLASSES   16
#define PLAN_FILES     64
#define PLAN_PATHS     64
#define PLAN_SYSCTLS   64
#define PLAN_ADDRESSES 4
#define PLAN_GATEWAYS  2

struct id_map {
	uint32_t inside, outside, count;
};

struct plan_device {
	char *name, *source, *path, *user, *group;
	bool block, required;
	uint32_t mode, access;
};

/* A file or directory of the host's. */
struct plan_bind {
	char *name, *source, *target;
	uint32_t access; /* CTL_READ, with CTL_WRITE, CTL_EXEC, CTL_SHIFT and CTL_RECURSIVE where said */
	bool required;
};

/* A file system of its own, on a block device or on none. */
struct plan_filesystem {
	char *name, *type, *source, *target, *data;
	uint32_t access; /* as of a bind */
	bool required;
};

/* `name` is the device's, NULL when it is not there. */
struct plan_device_env {
	char *name, *text; /* KEY=VALUE */
};

/* A group that every process may have besides its own. `name` is the device's, NULL when it is not there. */
struct plan_group {
	char *name;
	uint32_t gid; /* inside */
};

/* What is handed on as words. `name` is the device's, NULL when it is not there. */
struct plan_hook {
	char *name, *word[PLAN_HOOK_ARGS]; /* the kind first */
	size_t words;
};

/* Of which nodes of the host's come and go. */
struct plan_rule {
	char *name, *user, *group, *word[PLAN_HOOK_ARGS]; /* the kind first */
	size_t words;
	uint32_t mode, access;
};

/* A part of another device's that this one needs, too. */
struct plan_share {
	char *name, *path;
};

/* A link of the host's that moves in. */
struct plan_netdev {
	char *name, *parent, *inside, *address;
	uint32_t mtu;
	bool required;
};

struct plan_file {
	char *hierarchy, *file, *value;
};

struct plan_address {
	int family; /* 4 or 6 */
	char *address;
	unsigned prefix;
};

struct plan_sysctl {
	char *name, *value; /* below /proc/sys */
};

enum plan_net { NET_NONE, NET_HOST, NET_BRIDGE };
enum plan_restart { RESTART_NO, RESTART_ALWAYS, RESTART_ON_FAILURE };

struct plan {
	char *name, *hostname, *cgroup, *init, *bridge, *host_link, *inner_link, *mac;
	bool shifted, nesting;
	enum plan_net net;
	uint64_t ingress, egress; /* bits in a second; 0: no limit */
	uint32_t priority;        /* of what it sends; UINT32_MAX: as it is */
	enum plan_restart restart;
	unsigned mtu, stop_timeout;
	int halt_signal;
	uint64_t console_size;
	size_t uids, gids, layers, files, addresses, gateways, arguments, envs, masks, readonlys;
	size_t devices, binds, filesystems, groups, device_envs, hooks, shares, sysctls, rules, netdevs, rdmas, classes;
	size_t host_hooks; /* which are not ours to run */
	struct confinement confinement;
	/* pages that nobody needs take no memory: the largest last */
	struct id_map uid[PLAN_MAPS], gid[PLAN_MAPS];
	struct plan_address address[PLAN_ADDRESSES], gateway[PLAN_GATEWAYS];
	char *layer[PLAN_LAYERS];
	char *argument[PLAN_WORDS], *env[PLAN_WORDS];
	char *mask[PLAN_PATHS], *readonly[PLAN_PATHS];
	struct plan_file file[PLAN_FILES];
	struct plan_device device[PLAN_DEVICES];
	struct plan_bind bind[PLAN_BINDS];
	struct plan_filesystem filesystem[PLAN_DISKS];
	struct plan_group group[PLAN_GROUPS];
	struct plan_share share[PLAN_DEVICES];
	struct plan_device_env device_env[PLAN_WORDS];
	struct plan_hook hook[PLAN_HOOKS];
	struct plan_sysctl sysctl[PLAN_SYSCTLS];
	struct plan_rule rule[PLAN_RULES];
	struct plan_netdev netdev[PLAN_NETDEVS];
	struct plan_share rdma[PLAN_NETDEVS]; /* path: the name of an RDMA device */
	struct plan_hook class[PLAN_CLASSES]; /* of resctrl: class, where that is mounted, `monitored` or "", schemata
					       */
};

/* Parses `text` in place into a plan that is all zero, which is not written again: most of it is never needed, and then
 * takes no memory. 0, or -1 with the line number and reason in `f`. */
int plan_parse(struct plan *plan, char *text, struct failure *f);

/* A name of the environment, as far as `=` or the end. */
bool plan_variable(const char *text);

/* The host's id for `inside`, or UINT32_MAX when it is not mapped. */
uint32_t plan_map(const struct id_map *map, size_t count, uint32_t inside);

bool plan_has(const struct id_map *map, size_t count, uint32_t outside);

/* An id of the host that the map does not reach. */
uint32_t plan_unmapped(const struct id_map *map, size_t count);
