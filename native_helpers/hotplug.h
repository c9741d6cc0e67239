/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * What hotplug.c, spare.c and model.c have in common: nodes of the host's as sysfs has them, and rules that say which
 * of them a device has. */
#pragma once
#include "monitor.h"

#define DEPTH     12 /* of a node of a USB device's below it: interface, host, target, disk, partition */
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

/* spare.c: hardware of the same model, for what is gone. */
void spare_consider(struct monitor *m, struct part *rule, const struct node *n);
bool spare_is_for(struct monitor *m, const char *name); /* NULL: for any device */
/* What its rule knew of a node that has gone. */
void spare_forget(struct monitor *m, const struct ctl_device *gone);
/* A node that was made anew when its RDMA device moved in is not gone. */
bool spare_moved_in(struct monitor *m, const struct part *p);
