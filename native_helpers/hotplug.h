/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * What hotplug.c, spare.c and model.c have in common: nodes of the host's as sysfs has them, and rules that say which
 * of them a device has. */
#pragma once
#include "monitor.h"

#define PATIENCE  2000 /* ms, until what nobody tells of is looked for again */
#define DEPTH     12   /* of a node of a USB device's below it: interface, host, target, disk, partition */
#define BASE_MAX  48
#define PLACE_MAX 512 /* of sysfs; a controller behind many bridges and hubs */

/* A node of the host's, by its place in sysfs: `dev/char/189:3`. */
struct node {
	char base[BASE_MAX], place[PLACE_MAX], name[CTL_PATH_MAX];
	bool block;
	unsigned major, minor;
};

bool node_open(const struct monitor *m, const char *kind, unsigned major, unsigned minor, struct node *n);
bool node_is(const struct part *p, const struct node *n);
bool node_is_gone(const struct monitor *m, const struct part *p); /* from the host */
bool sys_link(const struct monitor *m, const char *path, char *text, size_t size);
/* A file of the directory so many above the node's, without what is around its text. */
bool node_attribute(const struct monitor *m, const struct node *n, unsigned above, const char *name, char *text,
		    size_t size);
bool node_in_subsystem(const struct monitor *m, const struct node *n, const char *name);

/* All of one kind, until one returns true. */
typedef bool node_visit(struct monitor *m, const char *kind, unsigned major, unsigned minor, void *data);
bool node_each(struct monitor *m, const char *kind, node_visit *visit, void *data);

bool part_is_rule(const struct part *p);
const char *rule_word(const struct part *rule, const char *key); /* NULL: it does not say */
/* Whether its device could have the node now. */
bool rule_waits(struct monitor *m, const struct part *rule, const struct node *n);
/* Leased and prepared, to be committed for PLUGGING. -1: it cannot be had. */
int rule_prepare(struct monitor *m, const struct part *rule, const struct node *n);
void rule_undo(struct monitor *m, const struct part *rule, const struct node *n); /* the lease, after that */

/* model.c: a node's hardware, by its place in sysfs, and what model that is. */
bool model_of(const struct monitor *m, const struct node *n, char *hardware, char *vendor, char *model, size_t size);
/* NVIDIA's driver has its GPUs in /proc and their nodes nowhere: they are taken for nodes of their PCI functions. */
bool nvidia_open(const struct monitor *m, unsigned minor, struct node *n);
bool nvidia_each(struct monitor *m, node_visit *visit, void *data); /* of whole GPUs */
#define NVIDIA_MAJOR 195

/* Nodes, and what moves, of one piece of hardware. */
#define UNIT_MAX 16

struct unit {
	size_t count;
	struct piece {
		struct part *rule;
		struct node node; /* of what moves only its name on the host */
	} piece[UNIT_MAX];
};

/* spare_moves.c: the RDMA device and the network link of a unit. */
unsigned rule_moves(const struct part *rule); /* the type of what it is for; 0: a node */
/* What is missing for the rule; false: it is not to be had, or the old one is still there. */
bool spare_add_move(struct monitor *m, struct unit *u, struct part *rule, const char *hardware);
int spare_prepare_move(struct monitor *m, const struct piece *piece);
bool node_is_link(const struct node *n); /* a network link of the host's, taken for a node of its hardware */
void spare_try_links(struct monitor *m, struct part *rule); /* each of them, if the rule's has gone */

/* spare.c: hardware of the same model, for what is gone. */
struct part *spare_occupant(struct monitor *m, const struct part *rule); /* what is where it would put one */
void spare_consider(struct monitor *m, struct part *rule, const struct node *n);
bool spare_is_for(struct monitor *m, const char *name); /* NULL: for any device */
void spare_links(struct monitor *m);                    /* links may have come or gone */
/* What its rule knew of a node that has gone. */
void spare_forget(struct monitor *m, const struct ctl_device *gone);
/* A node that was made anew when its RDMA device moved in is not gone. */
bool spare_moved_in(struct monitor *m, const struct part *p);
