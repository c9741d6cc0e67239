/* SPDX-License-Identifier: GPL-3.0-or-later */
#pragma once
#include "monitor.h"
#include "netlink.h"

/* What a part of type CTL_NETDEV keeps in place of its text. */
struct moved {
	char parent[16]; /* its name on the host */
	uint8_t address[32];
	uint32_t address_size, mtu; /* as it is to be inside; 0: as it is */
	struct netlink_link was;    /* on the host */
	int inner;                  /* its index inside */
	bool away;
};

static inline struct moved *moved_of(const struct part *p)
{
	return (struct moved *)p->text;
}

static inline bool is_link(const struct part *p)
{
	return p->device.type == CTL_NETDEV && p->state != PART_FREE;
}

/* links.c */
uint32_t link_address(const char *text, uint8_t address[32]); /* `52:54:00:12:34:56`: its bytes; 0: it is none */
bool link_is(const struct netlink_link *one, const struct netlink_link *other); /* the same hardware, if it is any */
int link_prepare(struct monitor *m, struct part *p, const char *text, size_t size, struct failure *f);
int link_place(struct monitor *m, struct part *p, struct failure *f);
int link_withdraw(struct monitor *m, struct part *p, struct failure *f);
bool link_is_there(struct monitor *m, const struct part *p); /* inside, where it was put */
void link_forget(struct monitor *m, struct part *p);         /* one that is not */
int own_namespace(struct monitor *m); /* a descriptor of the network namespace that is the host's */

/* rdma.c: what happens depends on whether the host keeps RDMA devices apart. */
int rdma_prepare(struct part *p, struct failure *f);
int rdma_place(struct monitor *m, struct part *p, struct failure *f);
int rdma_withdraw(struct monitor *m, struct part *p, struct failure *f);
bool rdma_is_there(struct monitor *m, const struct part *p); /* the very device, wherever it was put */
