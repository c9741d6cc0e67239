/* SPDX-License-Identifier: GPL-3.0-or-later */
#include "priv_net.h"

#include <errno.h>
#include <linux/if_link.h>
#include <linux/veth.h>
#include <string.h>
#include <sys/socket.h>

/* What the kernel takes as a link's name, and a terminated string at all: requests come from outside. */
static int name_ok(const char name[IFNAMSIZ])
{
	size_t length = strnlen(name, IFNAMSIZ);

	return length && length < IFNAMSIZ && !memchr(name, '/', length) && !memchr(name, ':', length) &&
	       strcmp(name, ".") && strcmp(name, "..");
}

static void put_veth(struct netlink *n, int netns, const struct net_link *link, int bridge)
{
	struct ifinfomsg *peer, *m;
	struct rtattr *info, *data, *inside;

	m = netlink_begin(n, "make the link", RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, sizeof(*m));
	m->ifi_flags = m->ifi_change = IFF_UP;
	netlink_put_string(n, IFLA_IFNAME, link->host);
	netlink_put_u32(n, IFLA_MASTER, bridge);
	if (link->mtu)
		netlink_put_u32(n, IFLA_MTU, link->mtu);
	info = netlink_nest(n, IFLA_LINKINFO);
	netlink_put_string(n, IFLA_INFO_KIND, "veth");
	data = netlink_nest(n, IFLA_INFO_DATA);
	inside = netlink_nest(n, VETH_INFO_PEER);
	peer = netlink_space(n, sizeof(*peer));
	peer->ifi_index = NET_LINK_INDEX;
	/* not up yet: veth refuses that (ENOTCONN) until both ends know each other */
	netlink_put_string(n, IFLA_IFNAME, link->inside);
	netlink_put(n, IFLA_ADDRESS, link->mac, sizeof(link->mac));
	netlink_put_u32(n, IFLA_NET_NS_FD, netns);
	if (link->mtu)
		netlink_put_u32(n, IFLA_MTU, link->mtu);
	netlink_end(n, inside);
	netlink_end(n, data);
	netlink_end(n, info);
}

int net_link(int netns, const struct net_link *link, const char **failed)
{
	struct netlink_link bridge;
	struct netlink n;
	int error;

	*failed = "check the link's names";
	if (!name_ok(link->bridge) || !name_ok(link->host) || !name_ok(link->inside))
		return -EINVAL;
	*failed = "find the bridge";
	error = netlink_open(&n);
	if (!error)
		error = netlink_find(&n, link->bridge, &bridge);
	if (!error && strcmp(bridge.kind, "bridge"))
		error = -EMEDIUMTYPE;
	if (!error) {
		put_veth(&n, netns, link, bridge.index);
		error = netlink_run(&n, failed);
	}
	netlink_close(&n);
	return error;
}

static void put_default_route(struct netlink *n, const struct address *gateway)
{
	struct rtmsg *m =
		netlink_begin(n, "add the default route", RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL, sizeof(*m));

	m->rtm_family = gateway->family;
	m->rtm_table = RT_TABLE_MAIN;
	m->rtm_protocol = RTPROT_BOOT;
	m->rtm_type = RTN_UNICAST;
	netlink_put(n, RTA_GATEWAY, gateway->bytes, gateway->family == AF_INET ? 4 : 16);
	netlink_put_u32(n, RTA_OIF, NET_LINK_INDEX);
}

static int family_ok(const struct address *a)
{
	return (a->family == AF_INET && a->prefix <= 32) || (a->family == AF_INET6 && a->prefix <= 128);
}

int net_inside(const struct net_inside *inside, const char **failed)
{
	struct netlink n;
	int error;

	*failed = "check the addresses";
	if (inside->addresses > NET_ADDRESSES_MAX || inside->gateways > NET_GATEWAYS_MAX)
		return -EINVAL;
	for (unsigned i = 0; i < inside->addresses; i++)
		if (!family_ok(&inside->address[i]))
			return -EINVAL;
	for (unsigned i = 0; i < inside->gateways; i++)
		if (!family_ok(&inside->gateway[i]))
			return -EINVAL;
	*failed = "open a netlink socket";
	error = netlink_open(&n);
	if (error)
		return error;
	netlink_put_up(&n, "set loopback up", 1);
	if (inside->link)
		netlink_put_up(&n, "set the link up", NET_LINK_INDEX);
	for (unsigned i = 0; inside->link && i < inside->addresses; i++)
		netlink_put_address(&n, NET_LINK_INDEX, &inside->address[i], NLM_F_EXCL);
	for (unsigned i = 0; inside->link && i < inside->gateways; i++)
		put_default_route(&n, &inside->gateway[i]);
	error = netlink_run(&n, failed);
	netlink_close(&n);
	return error;
}
