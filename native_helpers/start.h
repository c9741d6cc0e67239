/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * The steps of a start, by the file in which they are. Each returns 0, or -1 with `f` filled. */
#pragma once
#include "monitor.h"
#include "priv_net.h"

_Static_assert(PLAN_ADDRESSES == NET_ADDRESSES_MAX && PLAN_GATEWAYS == NET_GATEWAYS_MAX, "what a plan has, fits");

/* What only the start needs. */
struct start {
	struct monitor *m;
	int layer[PLAN_LAYERS], device[PLAN_DEVICES], bind[PLAN_BINDS], filesystem[PLAN_DISKS]; /* -1: not there */
	int own, pidns, sync, report; /* own: the instance's directory, in the monitor's mount namespace */
};

/* prepare.c: all slots empty. */
void start_begin(struct start *s);
void start_end(struct start *s);

/* prepare.c: a mount namespace of our own, and everything that the host has to give while we still see it. */
int start_leave_host(struct start *s, struct failure *f);

/* root.c */
int start_root(struct start *s, struct failure *f); /* afterwards it is the monitor's own, too */
int start_dev(struct monitor *m, struct failure *f);
int start_kernel_mounts(struct start *s, const struct net_inside *inside, struct failure *f);
int start_mask(struct monitor *m, struct failure *f);

/* planned.c */
int start_devices(struct start *s, struct failure *f);
