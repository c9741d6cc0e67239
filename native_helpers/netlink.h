/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Raw rtnetlink: messages are written one after the other into one buffer, sent at once, and their
 * answers read until the last: one socket and one round trip for a whole configuration. */
#pragma once
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct netlink {
	int fd;
	uint32_t sequence; /* of the last message */
	size_t used;
	struct nlmsghdr *message; /* the one being written */
	char *text[16];           /* what each message of the batch is about */
	unsigned count;
	_Alignas(NLMSG_ALIGNTO) char buffer[4096];
};

/* In the caller's network namespace. 0 or -errno. */
int netlink_open(struct netlink *n);
int netlink_open_protocol(struct netlink *n, int protocol); /* NETLINK_ROUTE or NETLINK_RDMA */
/* In another one; `own` is the caller's, to which it returns. */
int netlink_open_in(struct netlink *n, int protocol, int netns, int own);
void netlink_close(struct netlink *n); /* also twice, also after a failed open */

/* What the kernel says. Whoever is root in the network namespace - an instance's - can send to our sockets there, too,
 * and could tell us that a link of its own is the host's. -1 with errno. */
ssize_t netlink_hear(int fd, void *buffer, size_t size, int flags);

/* Begins a message with `size` bytes of family header, which it returns zeroed. */
void *netlink_begin(struct netlink *n, const char *what, uint16_t type, uint16_t flags, size_t size);
void netlink_put(struct netlink *n, uint16_t type, const void *data, size_t size);
void netlink_put_string(struct netlink *n, uint16_t type, const char *text);
void netlink_put_u32(struct netlink *n, uint16_t type, uint32_t value);
void *netlink_space(struct netlink *n, size_t size); /* zeroed bytes that are no attribute */
struct rtattr *netlink_nest(struct netlink *n, uint16_t type);
void netlink_end(struct netlink *n, struct rtattr *nest);

/* Sends what was written and hears every answer. 0, or -errno of the first that failed, and then
 * *failed is what that message was about. Messages after it have been carried out all the same. */
int netlink_run(struct netlink *n, const char **failed);

struct netlink_link {
	int index, master;       /* master: of the bridge or bond that it is a port of, or 0 */
	unsigned flags, mtu;     /* IFF_… */
	char kind[16], name[16]; /* kind: "bridge", "veth", "" for a device */
	char device[64];         /* of the hardware that it belongs to, "" for none; a process cannot choose it */
	uint8_t address[32], permanent[32];
	uint32_t address_size;
};
/* -ENODEV when there is none of that name or index. */
int netlink_find(struct netlink *n, const char *name, struct netlink_link *out);
int netlink_find_index(struct netlink *n, int index, struct netlink_link *out);
/* Calls `visit` with each answer to one message until it returns non-zero; that, or -errno. */
int netlink_dump(struct netlink *n, int (*visit)(const struct nlmsghdr *answer, void *data), void *data);
void netlink_read(const struct nlmsghdr *answer, struct netlink_link *out);

struct address {
	int family; /* AF_INET, AF_INET6 */
	uint8_t prefix;
	uint8_t bytes[16];
};
void netlink_put_address(struct netlink *n, int index, const struct address *a, uint16_t flags);
void netlink_put_up(struct netlink *n, const char *what, int index);
