/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Links and RDMA devices that move between network namespaces. */
#include "netlink.h"
#include "priv.h"

#include <linux/if.h>
#include <linux/if_link.h>
#include <linux/nsfs.h>
#include <rdma/rdma_netlink.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

static bool name_ok(const char name[IFNAMSIZ])
{
	size_t length = strnlen(name, IFNAMSIZ);

	if (!length || length == IFNAMSIZ || !strcmp(name, ".") || !strcmp(name, ".."))
		return false;
	for (size_t i = 0; i < length; i++)
		if (strchr("/:%", name[i]) || (unsigned char)name[i] <= ' ')
			return false;
	return true;
}

/* Before the first step: setns(2) would say so only in the middle. */
static bool namespaces_ok(const int in[])
{
	for (int i = 0; i < 3; i++)
		if (ioctl(in[i], NS_GET_NSTYPE) != CLONE_NEWNET) {
			errno = errno == EBADF ? EBADF : EINVAL;
			return false;
		}
	return true;
}

static struct ifinfomsg *change(struct netlink *n, const char *what, int index)
{
	struct ifinfomsg *m = netlink_begin(n, what, RTM_NEWLINK, 0, sizeof(*m));

	m->ifi_index = index;
	return m;
}

/* Down first: older kernels rename nothing that is up. */
static int move(int source, int target, int own, int index, const char *name, const char **failed)
{
	struct netlink n;
	int error = netlink_open_in(&n, NETLINK_ROUTE, source, own);

	*failed = "open a netlink socket";
	if (!error) {
		change(&n, "set it down", index)->ifi_change = IFF_UP;
		change(&n, "move it", index);
		netlink_put_u32(&n, IFLA_NET_NS_FD, (uint32_t)target);
		netlink_put_string(&n, IFLA_IFNAME, name);
		error = netlink_run(&n, failed);
	}
	netlink_close(&n);
	return error;
}

static int set(const struct priv_netdev *r, int target, int own, const char **failed)
{
	struct netlink_link link;
	struct netlink n;
	int error = netlink_open_in(&n, NETLINK_ROUTE, target, own);

	*failed = "find it";
	if (!error)
		error = netlink_find(&n, r->name, &link);
	if (!error && r->address_size) {
		change(&n, "set its hardware address", link.index);
		netlink_put(&n, IFLA_ADDRESS, r->address, r->address_size);
	}
	if (!error && r->mtu) {
		change(&n, "set its mtu", link.index);
		netlink_put_u32(&n, IFLA_MTU, r->mtu);
	}
	if (!error && r->up)
		netlink_put_up(&n, "set it up", link.index);
	if (!error && n.count)
		error = netlink_run(&n, failed);
	netlink_close(&n);
	return error;
}

static bool same_namespace(int one, int other)
{
	struct stat a, b;

	return !fstat(one, &a) && !fstat(other, &b) && a.st_ino == b.st_ino && a.st_dev == b.st_dev;
}

/* Of another link than the one that is to have it. */
static bool in_use(const char *name, const struct netlink_link *was, const int in[])
{
	struct netlink_link there = {0};
	struct netlink n;
	bool found = !netlink_open_in(&n, NETLINK_ROUTE, in[1], in[2]) && !netlink_find(&n, name, &there);

	netlink_close(&n);
	return found && !(same_namespace(in[0], in[1]) && there.index == was->index);
}

/* After a failure, from which it may be there under its new name or, because the kernel moves it before it finds that
 * it cannot have that, under its old one. */
static void bring_back(const struct netlink_link *was, const char *name, const int in[])
{
	const char *const names[] = {name, was->name}, *ignored;
	struct netlink_link link;
	struct netlink n;
	bool gone = netlink_open_in(&n, NETLINK_ROUTE, in[0], in[2]) || netlink_find_index(&n, was->index, &link);

	netlink_close(&n);
	for (size_t i = 0; gone && i < ARRAY_SIZE(names); i++) {
		bool there = !netlink_open_in(&n, NETLINK_ROUTE, in[1], in[2]) && !netlink_find(&n, names[i], &link);

		netlink_close(&n);
		if (there && !strcmp(link.kind, was->kind) && !strcmp(link.device, was->device) &&
		    !move(in[1], in[0], in[2], link.index, was->name, &ignored))
			return;
	}
}

int priv_netdev(const void *request, const int in[], int count, int out[], struct failure *f)
{
	const struct priv_netdev *r = request;
	const char *failed = "find it";
	struct netlink_link was;
	struct netlink n;
	int error;

	(void)count, (void)out;
	errno = EINVAL;
	if (!r->index || r->index > INT32_MAX || !name_ok(r->name) || r->address_size > sizeof(r->address) ||
	    r->mtu > INT32_MAX)
		return fail(f, "read the request", "not a link and a name");
	if (!namespaces_ok(in))
		return fail(f, "read the request", "not three network namespaces");
	error = netlink_open_in(&n, NETLINK_ROUTE, in[0], in[2]);
	if (!error)
		error = netlink_find_index(&n, (int)r->index, &was);
	netlink_close(&n);
	if (!error && was.flags & IFF_LOOPBACK)
		error = -EINVAL;
	if (!error && in_use(r->name, &was, in))
		error = -EEXIST;
	if (!error) {
		error = move(in[0], in[1], in[2], (int)r->index, r->name, &failed);
		error = error ? error : set(r, in[1], in[2], &failed);
		if (error)
			bring_back(&was, r->name, in);
	}
	errno = -error;
	return error ? fail(f, "move the link", "%s: `%.15s`", failed, r->name) : 0;
}

int priv_rdma(const void *request, const int in[], int count, int out[], struct failure *f)
{
	const struct priv_rdma *r = request;
	const char *failed = "open a netlink socket";
	struct netlink n;
	int error;

	(void)count, (void)out;
	errno = EINVAL;
	if (!namespaces_ok(in))
		return fail(f, "read the request", "not three network namespaces");
	error = netlink_open_in(&n, NETLINK_RDMA, in[0], in[2]);
	/* the namespace that it is in must be the caller's, and not only the socket's */
	if (!error && setns(in[0], CLONE_NEWNET))
		error = -errno;
	if (!error) {
		netlink_begin(&n, "move it", RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_SET), 0, 0);
		netlink_put_u32(&n, RDMA_NLDEV_ATTR_DEV_INDEX, r->index);
		netlink_put_u32(&n, RDMA_NLDEV_NET_NS_FD, (uint32_t)in[1]);
		error = netlink_run(&n, &failed);
		if (setns(in[2], CLONE_NEWNET))
			abort();
	}
	netlink_close(&n);
	errno = -error;
	return error ? fail(f, "move the RDMA device", "%s", failed) : 0;
}
