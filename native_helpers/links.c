/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Links of the host's that are an instance's for a while. A socket in the instance's network namespace keeps that alive
 * until they are back, and hears whether a link that is no hardware was deleted, so that what the instance has made in
 * its place never comes to the host. */
#include "links.h"

#include <arpa/inet.h>
#include <linux/filter.h>
#include <linux/if_link.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

int own_namespace(struct monitor *m)
{
	return openat(m->proc, "self/ns/net", O_RDONLY | O_CLOEXEC);
}

uint32_t link_address(const char *text, uint8_t address[32])
{
	uint32_t size = 0;
	int used;

	for (; size < 32 && sscanf(text, "%2hhx%n", &address[size], &used) == 1; text++) {
		text += used;
		size++;
		if (!*text)
			return size;
		if (*text != ':')
			break;
	}
	return 0;
}

/* IPoIB's hardware address is a queue pair, a subnet and a GUID: the last is what is chosen. */
static bool address_fits(struct moved *v)
{
	if (v->was.address_size == 20 && v->address_size == 8) {
		memcpy(v->address + 12, v->address, 8);
		memcpy(v->address, v->was.address, 12);
		v->address_size = 20;
	}
	return !v->address_size || v->address_size == v->was.address_size;
}

/* By which links the host's default routes go: [1] IPv6. */
struct defaults {
	int index;
	bool by_it[2], by_another[2];
};

static void goes_by(struct defaults *d, unsigned char family, int index)
{
	bool *by = index == d->index ? d->by_it : d->by_another;

	by[family == AF_INET6] = true;
}

static int read_route(const struct nlmsghdr *answer, void *data)
{
	struct rtmsg *route = NLMSG_DATA(answer);
	int length = (int)RTM_PAYLOAD(answer), index;

	if (answer->nlmsg_type != RTM_NEWROUTE || route->rtm_dst_len || route->rtm_type != RTN_UNICAST)
		return 0;
	for (struct rtattr *a = RTM_RTA(route); RTA_OK(a, length); a = RTA_NEXT(a, length)) {
		if (a->rta_type == RTA_OIF && RTA_PAYLOAD(a) == sizeof(index)) {
			memcpy(&index, RTA_DATA(a), sizeof(index));
			goes_by(data, route->rtm_family, index);
		} else if (a->rta_type == RTA_MULTIPATH) {
			struct rtnexthop *hop = RTA_DATA(a);

			for (int left = (int)RTA_PAYLOAD(a); RTNH_OK(hop, left);
			     left -= (int)NLMSG_ALIGN(hop->rtnh_len), hop = RTNH_NEXT(hop))
				goes_by(data, route->rtm_family, hop->rtnh_ifindex);
		}
	}
	return 0;
}

/* 0, or -errno when the host needs it itself. */
static int is_free(struct netlink *n, const struct netlink_link *link)
{
	struct defaults d = {.index = link->index};
	int error;

	if (link->flags & IFF_LOOPBACK || !strcmp(link->kind, "bridge"))
		return -EMEDIUMTYPE;
	if (link->master)
		return -EBUSY;
	netlink_begin(n, "read the routes", RTM_GETROUTE, NLM_F_DUMP, sizeof(struct rtmsg));
	error = netlink_dump(n, read_route, &d);
	if (!error && ((d.by_it[0] && !d.by_another[0]) || (d.by_it[1] && !d.by_another[1])))
		error = -EADDRINUSE;
	return error;
}

static int look(struct moved *v, struct failure *f)
{
	struct netlink n;
	int error = netlink_open(&n);

	if (!error)
		error = netlink_find(&n, v->parent, &v->was);
	if (!error)
		error = is_free(&n, &v->was);
	netlink_close(&n);
	if (!error && !address_fits(v)) {
		errno = EINVAL;
		return fail(f, "check the hardware address", "`%s` has one of %u bytes", v->parent,
			    v->was.address_size);
	}
	errno = -error;
	return error ? fail(f, "take the link", "`%s`", v->parent) : 0;
}

int link_prepare(struct monitor *m, struct part *p, const char *text, size_t size, struct failure *f)
{
	const char *address = text + strlen(text) + 1,
		   *mtu = address < text + size ? address + strlen(address) + 1 : "";
	struct moved *v = calloc(1, sizeof(*v));

	errno = ENOMEM;
	if (!v)
		return fail(f, "read the request", "memory");
	p->text = (char *)v;
	p->size = sizeof(*v);
	errno = EINVAL;
	if (mtu >= text + size || strlen(text) >= sizeof(v->parent) || strlen(p->device.path) >= IFNAMSIZ)
		return fail(f, "read the request", "a link without its name, address and mtu");
	strcpy(v->parent, text);
	v->mtu = (uint32_t)strtoul(mtu, NULL, 10);
	v->address_size = *address ? link_address(address, v->address) : 0;
	if (*address && !v->address_size)
		return fail(f, "read the request", "`%s` is no hardware address", address);
	if (m->plan.net == NET_HOST)
		return fail(f, "take the link", "the instance is in the host's network");
	snprintf(p->device.user, sizeof(p->device.user), "%s", v->parent); /* for whoever lists it */
	return look(v, f);
}

/* A socket that hears what is deleted in the namespace, later only of one link. */
static int hear(int socket, uint32_t index)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_H | BPF_ABS, offsetof(struct nlmsghdr, nlmsg_type)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, htons(RTM_DELLINK), 0, index ? 3 : 1),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, NLMSG_HDRLEN + offsetof(struct ifinfomsg, ifi_index)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, htonl(index), 0, 1),
		BPF_STMT(BPF_RET | BPF_K, UINT32_MAX),
		BPF_STMT(BPF_RET | BPF_K, 0),
	};
	struct sock_fprog program = {ARRAY_SIZE(code), code};

	if (!index) {
		code[2] = code[4];
		code[3] = code[5];
		program.len = 4;
	}
	return setsockopt(socket, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program));
}

static int listen_in(struct part *p, int netns, int own)
{
	struct sockaddr_nl address = {.nl_family = AF_NETLINK, .nl_groups = RTMGRP_LINK};
	struct netlink n;
	int error = netlink_open_in(&n, NETLINK_ROUTE, netns, own);

	if (!error && (hear(n.fd, 0) || bind(n.fd, (struct sockaddr *)&address, sizeof(address))))
		error = -errno;
	if (!error)
		p->fd = take_fd(&n.fd);
	netlink_close(&n);
	return error;
}

/* Whether the link of that index has been deleted, or so much that we lost count. */
static bool was_deleted(int socket, int index)
{
	_Alignas(NLMSG_ALIGNTO) char buffer[8192];
	struct nlmsghdr *heard = (struct nlmsghdr *)buffer;
	ssize_t length;

	while ((length = netlink_hear(socket, buffer, sizeof(buffer), MSG_DONTWAIT | MSG_TRUNC)) >= 0) {
		if (length < (ssize_t)NLMSG_LENGTH(sizeof(struct ifinfomsg)))
			continue;
		if (((struct ifinfomsg *)NLMSG_DATA(heard))->ifi_index == index)
			return true;
	}
	return errno != EAGAIN;
}

bool link_is(const struct netlink_link *one, const struct netlink_link *other)
{
	return !strcmp(one->device, other->device) && !memcmp(one->permanent, other->permanent, sizeof(one->permanent));
}

int link_place(struct monitor *m, struct part *p, struct failure *f)
{
	struct moved *v = moved_of(p);
	struct priv_netdev request = {.index = (uint32_t)v->was.index, .mtu = v->mtu, .up = 1};
	OWNED int own = own_namespace(m), netns = start_namespace(m, "net");
	struct netlink_link was = v->was, there = {0};
	struct netlink n;
	int error;

	memcpy(request.name, p->device.path, sizeof(request.name));
	memcpy(request.address, v->address, sizeof(request.address));
	request.address_size = v->address_size;
	errno = 0;
	if (own < 0 || netns < 0)
		return fail(f, "take the link", "the network namespaces");
	errno = ESTALE;
	if (look(v, f) || v->was.index != was.index || !link_is(&v->was, &was))
		return f->error ? -1 : fail(f, "take the link", "`%s` is another one now", v->parent);
	errno = -listen_in(p, netns, own);
	if (errno)
		return fail(f, "take the link", "listen in the instance's network");
	v->away = true;
	if (links_record(m) || PRIV_CALL(PRIV_NETDEV, &request, NULL, f, own, netns, own)) {
		if (!f->error)
			fail(f, "take the link", "write down where `%s` belongs", v->parent);
		v->away = false;
		links_record(m);
		return -1;
	}
	error = netlink_open_in(&n, NETLINK_ROUTE, netns, own);
	if (!error)
		error = netlink_find(&n, request.name, &there);
	v->inner = there.index;
	if (!error && hear(p->fd, (uint32_t)v->inner))
		error = -errno;
	if (!error) {
		was_deleted(p->fd, 0); /* what was heard so far is of other links: this one is still there */
		error = netlink_find_index(&n, v->inner, &there);
	}
	netlink_close(&n);
	if (!error && !link_is(&there, &v->was))
		error = -ESTALE;
	errno = -error;
	return error ? fail(f, "take the link", "`%s` inside", request.name) : 0;
}

int link_withdraw(struct monitor *m, struct part *p, struct failure *f)
{
	struct moved *v = moved_of(p);
	struct priv_netdev back = {.index = (uint32_t)v->inner, .mtu = v->was.mtu, .up = !!(v->was.flags & IFF_UP)};
	OWNED int own = own_namespace(m), netns = p->fd < 0 ? -1 : ioctl(p->fd, SIOCGSKNS);
	struct netlink_link there;
	struct netlink n;
	int error;

	if (!v->away)
		return 0;
	if (own < 0 || netns < 0)
		return fail(f, "bring the link back", "the network namespaces");
	memcpy(back.name, v->parent, sizeof(back.name));
	if (v->address_size) {
		memcpy(back.address, v->was.address, sizeof(back.address));
		back.address_size = v->was.address_size;
	}
	error = netlink_open_in(&n, NETLINK_ROUTE, netns, own);
	if (!error)
		error = netlink_find_index(&n, v->inner, &there);
	netlink_close(&n);
	if (!error && (!link_is(&there, &v->was) || (!v->was.device[0] && was_deleted(p->fd, v->inner))))
		error = -ENODEV;
	if (error == -ENODEV && !v->was.device[0]) {
		v->away = false; /* the instance has deleted it: nothing is left to come back */
		return links_record(m);
	}
	errno = -error;
	if (error)
		return fail(f, "bring the link back", "`%s` is not where it was put inside", v->parent);
	if (PRIV_CALL(PRIV_NETDEV, &back, NULL, f, netns, own, own))
		return -1;
	v->away = false;
	return links_record(m);
}

bool link_is_there(struct monitor *m, const struct part *p)
{
	const struct moved *v = moved_of(p);
	OWNED int own = own_namespace(m), netns = p->fd < 0 ? -1 : ioctl(p->fd, SIOCGSKNS);
	struct netlink_link there;
	struct netlink n;
	int error;

	if (own < 0 || netns < 0)
		return true; /* nobody can say that it is not */
	error = netlink_open_in(&n, NETLINK_ROUTE, netns, own);
	if (!error)
		error = netlink_find_index(&n, v->inner, &there);
	netlink_close(&n);
	return error ? error != -ENODEV : link_is(&there, &v->was);
}

void link_forget(struct monitor *m, struct part *p)
{
	moved_of(p)->away = false;
	(void)links_record(m);
	part_free(p);
}

void links_return(struct monitor *m)
{
	struct failure ignored;

	for (size_t i = m->used; i--;)
		if (m->part[i].device.type == CTL_RDMA && m->part[i].state != PART_FREE) {
			(void)rdma_withdraw(m, &m->part[i], &ignored);
			close_fd(&m->part[i].fd);
		} else if (is_link(&m->part[i]) && link_withdraw(m, &m->part[i], &ignored))
			close_fd(&m->part[i].fd); /* nothing must keep its namespace: the kernel brings it back then */
}
