/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Network operations of the privileged table. None takes a path; the names are checked, and the
 * instance's namespace comes as a descriptor. */
#pragma once
#include "netlink.h"

#include <linux/if.h>

#define NET_LINK_INDEX    2 /* of the instance's link inside; loopback is 1 in every namespace */
#define NET_ADDRESSES_MAX 4
#define NET_GATEWAYS_MAX  2

struct net_link {
	char bridge[IFNAMSIZ]; /* on the host */
	char host[IFNAMSIZ];   /* our end */
	char inside[IFNAMSIZ]; /* the instance's end */
	uint8_t mac[6];        /* of the instance's end */
	uint32_t mtu;          /* 0: the kernel's default */
};

struct net_inside {
	struct address address[NET_ADDRESSES_MAX];
	struct address gateway[NET_GATEWAYS_MAX]; /* their prefix is not looked at */
	uint32_t addresses, gateways;
	uint32_t link; /* 0: only loopback */
};

/* Called in the host's network namespace: makes the pair in one message, one end up and enslaved to
 * the bridge, the other born in `netns` with index NET_LINK_INDEX. The pair goes away by
 * itself with the namespace; deleting it costs up to 20 ms, so nobody does.
 * Safe to grant: it changes nothing of the host but the new link; the bridge must be a bridge; a
 * link of that name that is already there is refused, not touched. */
int net_link(int netns, const struct net_link *link, const char **failed);

/* Called in the instance's network namespace: loopback and link up, addresses, default routes.
 * Safe to grant: it reaches only the namespace that the caller is in. */
int net_inside(const struct net_inside *inside, const char **failed);
