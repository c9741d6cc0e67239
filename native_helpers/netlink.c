/* SPDX-License-Identifier: GPL-3.0-or-later */
#include "netlink.h"

#include <errno.h>
#include <linux/if_addr.h>
#include <linux/if_link.h>
#include <net/if.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int netlink_open_protocol(struct netlink *n, int protocol)
{
	static const int on = 1;

	memset(n, 0, sizeof(*n));
	n->fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, protocol);
	if (n->fd < 0)
		return -errno;
	/* Errors come without a copy of the message: their answers all fit the receive buffer. */
	setsockopt(n->fd, SOL_NETLINK, NETLINK_CAP_ACK, &on, sizeof(on));
	return 0;
}

int netlink_open(struct netlink *n)
{
	return netlink_open_protocol(n, NETLINK_ROUTE);
}

int netlink_open_in(struct netlink *n, int protocol, int netns, int own)
{
	int error;

	memset(n, 0, sizeof(*n));
	n->fd = -1;
	if (setns(netns, CLONE_NEWNET))
		return -errno;
	error = netlink_open_protocol(n, protocol);
	if (setns(own, CLONE_NEWNET))
		abort(); /* what we do next would be done to somebody else's network */
	return error;
}

void netlink_close(struct netlink *n)
{
	if (n->fd >= 0)
		close(n->fd);
	n->fd = -1;
}

void *netlink_space(struct netlink *n, size_t size)
{
	void *space = n->buffer + n->used;

	/* All messages are of our own making and small: a full buffer is a bug, not an input. */
	if (n->used + NLMSG_ALIGN(size) > sizeof(n->buffer))
		abort();
	memset(space, 0, NLMSG_ALIGN(size));
	n->used += NLMSG_ALIGN(size);
	n->message->nlmsg_len = n->buffer + n->used - (char *)n->message;
	return space;
}

void *netlink_begin(struct netlink *n, const char *what, uint16_t type, uint16_t flags, size_t size)
{
	if (n->count == sizeof(n->text) / sizeof(*n->text))
		abort();
	n->text[n->count++] = (char *)what;
	n->message = (struct nlmsghdr *)(n->buffer + n->used);
	netlink_space(n, NLMSG_HDRLEN);
	n->message->nlmsg_type = type;
	n->message->nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK | flags;
	n->message->nlmsg_seq = ++n->sequence;
	return netlink_space(n, size);
}

void netlink_put(struct netlink *n, uint16_t type, const void *data, size_t size)
{
	struct rtattr *a = netlink_space(n, RTA_LENGTH(size));

	a->rta_type = type;
	a->rta_len = RTA_LENGTH(size);
	if (size)
		memcpy(RTA_DATA(a), data, size);
}

void netlink_put_string(struct netlink *n, uint16_t type, const char *text)
{
	netlink_put(n, type, text, strlen(text) + 1);
}

void netlink_put_u32(struct netlink *n, uint16_t type, uint32_t value)
{
	netlink_put(n, type, &value, sizeof(value));
}

struct rtattr *netlink_nest(struct netlink *n, uint16_t type)
{
	struct rtattr *nest = (struct rtattr *)(n->buffer + n->used);

	netlink_put(n, type, NULL, 0);
	return nest;
}

void netlink_end(struct netlink *n, struct rtattr *nest)
{
	nest->rta_len = n->buffer + n->used - (char *)nest;
}

static int send_batch(struct netlink *n)
{
	struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};

	if (sendto(n->fd, n->buffer, n->used, 0, (struct sockaddr *)&kernel, sizeof(kernel)) < 0)
		return -errno;
	return 0;
}

ssize_t netlink_hear(int fd, void *buffer, size_t size, int flags)
{
	struct sockaddr_nl from;
	socklen_t length;
	ssize_t got;

	do {
		length = sizeof(from);
		got = recvfrom(fd, buffer, size, flags, (struct sockaddr *)&from, &length);
	} while (got < 0 ? errno == EINTR : from.nl_pid);
	return got;
}

int netlink_run(struct netlink *n, const char **failed)
{
	uint32_t first = n->sequence - n->count + 1;
	int result = send_batch(n);
	unsigned open = result ? 0 : n->count;
	_Alignas(NLMSG_ALIGNTO) char buffer[4096];

	*failed = n->text[0];
	while (open) {
		struct nlmsghdr *answer = (struct nlmsghdr *)buffer;
		int length = (int)netlink_hear(n->fd, buffer, sizeof(buffer), 0);

		if (length < 0)
			return -errno;
		for (; length > 0 && NLMSG_OK(answer, (unsigned)length); answer = NLMSG_NEXT(answer, length)) {
			if (answer->nlmsg_type != NLMSG_ERROR || answer->nlmsg_seq - first >= n->count)
				continue;
			open--;
			if (!result) {
				result = ((struct nlmsgerr *)NLMSG_DATA(answer))->error;
				*failed = n->text[answer->nlmsg_seq - first];
			}
		}
	}
	n->used = n->count = 0;
	return result;
}

static void read_kind(struct rtattr *info, char kind[16])
{
	int length = RTA_PAYLOAD(info);

	for (struct rtattr *a = RTA_DATA(info); RTA_OK(a, length); a = RTA_NEXT(a, length))
		if (a->rta_type == IFLA_INFO_KIND)
			snprintf(kind, 16, "%.*s", (int)RTA_PAYLOAD(a), (char *)RTA_DATA(a));
}

void netlink_read(const struct nlmsghdr *answer, struct netlink_link *out)
{
	struct ifinfomsg *link = NLMSG_DATA(answer);
	int length = IFLA_PAYLOAD(answer);

	memset(out, 0, sizeof(*out));
	out->index = link->ifi_index;
	out->flags = link->ifi_flags;
	for (struct rtattr *a = IFLA_RTA(link); RTA_OK(a, length); a = RTA_NEXT(a, length)) {
		size_t size = RTA_PAYLOAD(a);
		const char *text = RTA_DATA(a);

		switch (a->rta_type) {
		case IFLA_LINKINFO: read_kind(a, out->kind); break;
		case IFLA_IFNAME: snprintf(out->name, sizeof(out->name), "%.*s", (int)size, text); break;
		case IFLA_PARENT_DEV_NAME: snprintf(out->device, sizeof(out->device), "%.*s", (int)size, text); break;
		case IFLA_MTU: memcpy(&out->mtu, text, sizeof(out->mtu)); break;
		case IFLA_MASTER: memcpy(&out->master, text, sizeof(out->master)); break;
		case IFLA_ADDRESS:
			out->address_size = size < sizeof(out->address) ? (uint32_t)size : sizeof(out->address);
			memcpy(out->address, text, out->address_size);
			break;
		case IFLA_PERM_ADDRESS:
			memcpy(out->permanent, text, size < sizeof(out->permanent) ? size : sizeof(out->permanent));
			break;
		}
	}
}

static int find(struct netlink *n, const char *name, int index, struct netlink_link *out)
{
	_Alignas(NLMSG_ALIGNTO) char buffer[16384];
	struct nlmsghdr *answer = (struct nlmsghdr *)buffer;
	struct ifinfomsg *wanted;
	int length;

	memset(out, 0, sizeof(*out));
	wanted = netlink_begin(n, "find the link", RTM_GETLINK, 0, sizeof(*wanted));
	wanted->ifi_index = index;
	n->message->nlmsg_flags = NLM_F_REQUEST; /* the link is the answer */
	if (name)
		netlink_put_string(n, IFLA_IFNAME, name);
	length = send_batch(n);
	n->used = n->count = 0;
	if (length)
		return length;
	length = (int)netlink_hear(n->fd, buffer, sizeof(buffer), 0);
	if (length < 0 || !NLMSG_OK(answer, (unsigned)length))
		return length < 0 ? -errno : -EIO;
	if (answer->nlmsg_type == NLMSG_ERROR)
		return ((struct nlmsgerr *)NLMSG_DATA(answer))->error;
	netlink_read(answer, out);
	return 0;
}

int netlink_find(struct netlink *n, const char *name, struct netlink_link *out)
{
	return find(n, name, 0, out);
}

int netlink_find_index(struct netlink *n, int index, struct netlink_link *out)
{
	return find(n, NULL, index, out);
}

int netlink_dump(struct netlink *n, int (*visit)(const struct nlmsghdr *answer, void *data), void *data)
{
	_Alignas(NLMSG_ALIGNTO) char buffer[32768];
	int result = send_batch(n);
	bool more = !result;

	n->used = n->count = 0;
	while (more) {
		struct nlmsghdr *answer = (struct nlmsghdr *)buffer;
		int length = (int)netlink_hear(n->fd, buffer, sizeof(buffer), 0);

		if (length <= 0)
			return -errno;
		for (; length > 0 && NLMSG_OK(answer, (unsigned)length); answer = NLMSG_NEXT(answer, length)) {
			more = answer->nlmsg_type != NLMSG_DONE && answer->nlmsg_type != NLMSG_ERROR;
			if (answer->nlmsg_type == NLMSG_ERROR && !result)
				result = ((struct nlmsgerr *)NLMSG_DATA(answer))->error;
			if (more && !result)
				result = visit(answer, data); /* the rest is read, so that the socket is empty */
		}
	}
	return result;
}

void netlink_put_address(struct netlink *n, int index, const struct address *a, uint16_t flags)
{
	size_t size = a->family == AF_INET ? 4 : 16;
	struct ifaddrmsg *m = netlink_begin(n, "add an address", RTM_NEWADDR, NLM_F_CREATE | flags, sizeof(*m));

	m->ifa_family = a->family;
	m->ifa_prefixlen = a->prefix;
	m->ifa_index = index;
	netlink_put(n, IFA_LOCAL, a->bytes, size);
	netlink_put(n, IFA_ADDRESS, a->bytes, size);
	/* We give out every address ourselves: without this it is useless for a second or two. */
	if (a->family == AF_INET6)
		netlink_put_u32(n, IFA_FLAGS, IFA_F_NODAD);
}

void netlink_put_up(struct netlink *n, const char *what, int index)
{
	struct ifinfomsg *m = netlink_begin(n, what, RTM_NEWLINK, 0, sizeof(*m));

	m->ifi_index = index;
	m->ifi_flags = m->ifi_change = IFF_UP;
}
