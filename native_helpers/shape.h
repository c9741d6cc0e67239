/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * How fast an instance's link is, set on the host's end of it, out of the instance's reach. */
#pragma once
#include "netlink.h"

#include <linux/if.h>

#define NET_RATE_MIN 8000 /* bits in a second; less does not carry one packet */

struct net_shape {
	char link[IFNAMSIZ];      /* the host's end */
	uint64_t ingress, egress; /* bits in a second, to the instance and from it; 0: as fast as it goes */
	uint32_t priority;        /* of the packets that it sends, where `prioritized` */
	uint32_t prioritized;
};

/* Called in the host's network namespace. What goes to the instance waits in a token bucket; of what it sends, the
 * surplus is dropped by a program of ours where it comes in (the kernel's own policer is missing from many). May be
 * repeated with other numbers: the old ones hold until the new ones do. 0 or -errno, and then *failed says of what.
 * Safe to grant: it reaches only one end of a veth pair, and can only slow it down. */
int net_shape(const struct net_shape *shape, const char **failed);

/* Whether this kernel can: tried on the loopback of a network namespace of its own, which the caller then is in. */
int net_shape_probe(const char **failed);

/* What `shape->link` is limited to now, as the kernel says. 0 or -errno. */
int net_shape_read(struct net_shape *shape);
