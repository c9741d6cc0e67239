/* SPDX-License-Identifier: GPL-3.0-or-later */
#include "shape.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>
#include <linux/pkt_sched.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAX(a, b)   ((a) > (b) ? (a) : (b))
#define BURST       (128u << 10) /* two of the largest packets that a veth carries whole */
#define FILTER_PRIO 1
#define NAME        "ctrmgr egress %llu priority %lld"

#define INSN(op, dst, src, offset, value) \
	((struct bpf_insn){.code = (op), .dst_reg = (dst), .src_reg = (src), .off = (offset), .imm = (value)})

static int sys_bpf(int command, union bpf_attr *attr)
{
	return (int)syscall(SYS_bpf, command, attr, sizeof(*attr));
}

static int put64(struct bpf_insn *p, uint8_t reg, uint8_t source, uint64_t value)
{
	p[0] = INSN(BPF_LD | BPF_DW | BPF_IMM, reg, source, 0, (int32_t)(uint32_t)value);
	p[1] = INSN(0, 0, 0, 0, (int32_t)(uint32_t)(value >> 32));
	return 2;
}

/* The map's one number is the time at which all that has passed would have passed at the wanted rate. A packet is
 * dropped when that is too far ahead of now, else it moves it on by what its bytes take. Two processors at once may let
 * one packet too many through, and no more: the sum is kept by an atomic addition. */
static int program_load(int map, const struct net_shape *shape)
{
	uint64_t bytes = MAX(shape->egress / 8, 1);
	uint64_t burst = MAX((uint64_t)BURST * 1000000000u / bytes, 50000000u); /* ns */
	uint64_t cost = (1000000000ull << 16) / bytes;                          /* ns for a byte, << 16 */
	struct bpf_insn p[48];
	union bpf_attr attr = {.prog_type = BPF_PROG_TYPE_SCHED_CLS,
			       .insns = (uint64_t)(uintptr_t)p,
			       .license = (uint64_t)(uintptr_t) "GPL"};
	int n = 0, absent, late, drop = 0;

	p[n++] = INSN(BPF_ALU64 | BPF_MOV | BPF_X, 6, 1, 0, 0);
	if (shape->prioritized) {
		p[n++] = INSN(BPF_ALU | BPF_MOV | BPF_K, 1, 0, 0, (int32_t)shape->priority);
		p[n++] = INSN(BPF_STX | BPF_MEM | BPF_W, 6, 1, offsetof(struct __sk_buff, priority), 0);
	}
	if (shape->egress) {
		p[n++] = INSN(BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_ktime_get_ns);
		p[n++] = INSN(BPF_ALU64 | BPF_MOV | BPF_X, 7, 0, 0, 0);
		p[n++] = INSN(BPF_ST | BPF_MEM | BPF_W, 10, 0, -4, 0);
		n += put64(p + n, 1, BPF_PSEUDO_MAP_FD, (uint32_t)map);
		p[n++] = INSN(BPF_ALU64 | BPF_MOV | BPF_X, 2, 10, 0, 0);
		p[n++] = INSN(BPF_ALU64 | BPF_ADD | BPF_K, 2, 0, 0, -4);
		p[n++] = INSN(BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_map_lookup_elem);
		absent = n++;
		p[n++] = INSN(BPF_LDX | BPF_MEM | BPF_DW, 1, 0, 0, 0);
		late = n++; /* already ahead of now */
		p[n++] = INSN(BPF_STX | BPF_MEM | BPF_DW, 0, 7, 0, 0);
		p[n++] = INSN(BPF_ALU64 | BPF_MOV | BPF_X, 1, 7, 0, 0);
		p[late] = INSN(BPF_JMP | BPF_JGE | BPF_X, 1, 7, (int16_t)(n - late - 1), 0);
		p[n++] = INSN(BPF_ALU64 | BPF_SUB | BPF_X, 1, 7, 0, 0);
		n += put64(p + n, 2, 0, burst);
		drop = n++;
		p[n++] = INSN(BPF_LDX | BPF_MEM | BPF_W, 3, 6, offsetof(struct __sk_buff, len), 0);
		n += put64(p + n, 4, 0, cost);
		p[n++] = INSN(BPF_ALU64 | BPF_MUL | BPF_X, 3, 4, 0, 0);
		p[n++] = INSN(BPF_ALU64 | BPF_RSH | BPF_K, 3, 0, 0, 16);
		p[n++] = INSN(BPF_STX | BPF_ATOMIC | BPF_DW, 0, 3, 0, BPF_ADD);
		p[absent] = INSN(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, (int16_t)(n - absent - 1), 0);
	}
	p[n++] = INSN(BPF_ALU64 | BPF_MOV | BPF_K, 0, 0, 0, TC_ACT_UNSPEC); /* others' filters may still look at it */
	p[n++] = INSN(BPF_JMP | BPF_EXIT, 0, 0, 0, 0);
	if (shape->egress) {
		p[drop] = INSN(BPF_JMP | BPF_JGT | BPF_X, 1, 2, (int16_t)(n - drop - 1), 0);
		p[n++] = INSN(BPF_ALU64 | BPF_MOV | BPF_K, 0, 0, 0, TC_ACT_SHOT);
		p[n++] = INSN(BPF_JMP | BPF_EXIT, 0, 0, 0, 0);
	}
	attr.insn_cnt = (uint32_t)n;
	strcpy(attr.prog_name, "ctrmgr_egress");
	return sys_bpf(BPF_PROG_LOAD, &attr);
}

static int program(const struct net_shape *shape)
{
	union bpf_attr attr = {.map_type = BPF_MAP_TYPE_ARRAY, .key_size = 4, .value_size = 8, .max_entries = 1};
	int map, program;

	strcpy(attr.map_name, "ctrmgr_egress");
	map = sys_bpf(BPF_MAP_CREATE, &attr);
	program = map < 0 ? -errno : program_load(map, shape);
	if (map >= 0 && program < 0)
		program = -errno;
	if (map >= 0)
		close(map); /* the program holds it */
	return program;
}

static struct tcmsg *begin(struct netlink *n, const char *what, uint16_t type, uint16_t flags, int index)
{
	struct tcmsg *m = netlink_begin(n, what, type, flags, sizeof(*m));

	m->tcm_family = AF_UNSPEC;
	m->tcm_ifindex = index;
	return m;
}

static void put_bucket(struct netlink *n, int index, uint64_t bits)
{
	uint64_t rate = bits / 8;
	uint32_t burst = (uint32_t)MAX(rate / 100 > UINT32_MAX / 4 ? UINT32_MAX / 4 : rate / 100, BURST / 2);
	struct tc_tbf_qopt option = {
		.rate = {.rate = (uint32_t)(rate < UINT32_MAX ? rate : UINT32_MAX), .linklayer = TC_LINKLAYER_ETHERNET},
		.limit = (uint32_t)(burst + MAX(rate / 10 > UINT32_MAX / 2 ? UINT32_MAX / 2 : rate / 10, BURST / 2))};
	struct tcmsg *m = begin(n, "limit what goes to the instance (sch_tbf)", RTM_NEWQDISC,
				NLM_F_CREATE | NLM_F_REPLACE, index);
	struct rtattr *nest;

	m->tcm_parent = TC_H_ROOT;
	m->tcm_handle = TC_H_MAKE(1u << 16, 0);
	netlink_put_string(n, TCA_KIND, "tbf");
	nest = netlink_nest(n, TCA_OPTIONS);
	netlink_put(n, TCA_TBF_PARMS, &option, sizeof(option));
	netlink_put_u32(n, TCA_TBF_BURST, burst);
	if (rate >= UINT32_MAX)
		netlink_put(n, TCA_TBF_RATE64, &rate, sizeof(rate));
	netlink_end(n, nest);
}

/* The filter's name says what it does, for whoever reads it back. */
static void put_filter(struct netlink *n, int index, int program, const struct net_shape *shape)
{
	char name[64];
	struct tcmsg *m = begin(n, "look at what the instance sends (sch_ingress)", RTM_NEWQDISC,
				NLM_F_CREATE | NLM_F_REPLACE, index);
	struct rtattr *nest;

	m->tcm_parent = TC_H_CLSACT;
	m->tcm_handle = TC_H_MAKE(TC_H_CLSACT, 0);
	netlink_put_string(n, TCA_KIND, "clsact");
	m = begin(n, "limit what the instance sends (cls_bpf)", RTM_NEWTFILTER, NLM_F_CREATE | NLM_F_REPLACE, index);
	m->tcm_parent = TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_INGRESS);
	m->tcm_handle = 1;
	m->tcm_info = TC_H_MAKE((uint32_t)FILTER_PRIO << 16, htons(ETH_P_ALL));
	netlink_put_string(n, TCA_KIND, "bpf");
	nest = netlink_nest(n, TCA_OPTIONS);
	netlink_put_u32(n, TCA_BPF_FD, (uint32_t)program);
	snprintf(name, sizeof(name), NAME, (unsigned long long)shape->egress,
		 shape->prioritized ? (long long)shape->priority : -1);
	netlink_put_string(n, TCA_BPF_NAME, name);
	netlink_put_u32(n, TCA_BPF_FLAGS, TCA_BPF_FLAG_ACT_DIRECT);
	netlink_end(n, nest);
}

/* What is not there need not be taken away. */
static int take_away(struct netlink *n, int index, uint32_t parent, uint32_t handle, const char **failed)
{
	struct tcmsg *m = begin(n, "take a limit away", RTM_DELQDISC, 0, index);
	int error;

	m->tcm_parent = parent;
	m->tcm_handle = handle;
	error = netlink_run(n, failed);
	return error == -ENOENT || error == -EINVAL ? 0 : error;
}

static int shape_index(struct netlink *n, int index, const struct net_shape *shape, const char **failed)
{
	int error = 0, fd;

	if (shape->ingress) {
		put_bucket(n, index, shape->ingress);
		error = netlink_run(n, failed);
	} else {
		error = take_away(n, index, TC_H_ROOT, 0, failed);
	}
	if (error)
		return error;
	if (!shape->egress && !shape->prioritized)
		return take_away(n, index, TC_H_CLSACT, TC_H_MAKE(TC_H_CLSACT, 0), failed);
	*failed = "load the program that limits what the instance sends";
	fd = program(shape);
	if (fd < 0)
		return fd;
	put_filter(n, index, fd, shape);
	error = netlink_run(n, failed);
	close(fd);
	return error;
}

static int is_rate(uint64_t bits)
{
	return !bits || bits >= NET_RATE_MIN;
}

int net_shape(const struct net_shape *shape, const char **failed)
{
	struct netlink_link link;
	struct netlink n;
	int error;

	*failed = "check the rates";
	if (!memchr(shape->link, 0, IFNAMSIZ) || !shape->link[0] || !is_rate(shape->ingress) || !is_rate(shape->egress))
		return -EINVAL;
	*failed = "find the link";
	error = netlink_open(&n);
	if (!error)
		error = netlink_find(&n, shape->link, &link);
	if (!error && strcmp(link.kind, "veth"))
		error = -EMEDIUMTYPE;
	if (!error)
		error = shape_index(&n, link.index, shape, failed);
	netlink_close(&n);
	return error;
}

int net_shape_probe(const char **failed)
{
	static const struct net_shape shape = {.ingress = 1000000, .egress = 1000000, .priority = 1, .prioritized = 1};
	struct netlink n;
	int error;

	*failed = "make a network namespace";
	if (unshare(CLONE_NEWNET))
		return -errno;
	error = netlink_open(&n);
	if (!error)
		error = shape_index(&n, 1, &shape, failed);
	netlink_close(&n);
	return error;
}

static struct rtattr *attribute(struct rtattr *a, int length, unsigned short type)
{
	for (; RTA_OK(a, length); a = RTA_NEXT(a, length))
		if ((a->rta_type & NLA_TYPE_MASK) == type)
			return a;
	return NULL;
}

/* The options of the qdisc or filter that was just asked for; NULL when there is none of that kind. What is there comes
 * before the acknowledgement, which always comes. */
static struct rtattr *options(struct netlink *n, const char *kind, char *buffer, size_t size)
{
	struct nlmsghdr *answer = (struct nlmsghdr *)buffer;
	struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};
	struct rtattr *first, *a;
	ssize_t length = sendto(n->fd, n->buffer, n->used, 0, (struct sockaddr *)&kernel, sizeof(kernel));
	char end[1024];

	n->used = n->count = 0;
	if (length < 0)
		return NULL;
	length = netlink_hear(n->fd, buffer, size, 0);
	if (length < 0 || !NLMSG_OK(answer, (unsigned)length) || answer->nlmsg_type == NLMSG_ERROR)
		return NULL;
	if (netlink_hear(n->fd, end, sizeof(end), 0) < 0)
		return NULL;
	first = (struct rtattr *)((char *)NLMSG_DATA(answer) + NLMSG_ALIGN(sizeof(struct tcmsg)));
	length = (int)NLMSG_PAYLOAD(answer, sizeof(struct tcmsg));
	a = attribute(first, (int)length, TCA_KIND);
	if (!a || strncmp(RTA_DATA(a), kind, RTA_PAYLOAD(a)))
		return NULL;
	return attribute(first, (int)length, TCA_OPTIONS);
}

int net_shape_read(struct net_shape *shape)
{
	_Alignas(NLMSG_ALIGNTO) char buffer[8192];
	struct netlink_link link;
	struct netlink n;
	struct rtattr *o, *a;
	struct tcmsg *m;
	int error = netlink_open(&n);

	shape->ingress = shape->egress = shape->prioritized = 0;
	if (!error)
		error = netlink_find(&n, shape->link, &link);
	if (!error) {
		m = begin(&n, "read a limit", RTM_GETQDISC, NLM_F_ECHO, link.index);
		m->tcm_parent = TC_H_ROOT;
		o = options(&n, "tbf", buffer, sizeof(buffer));
		a = o ? attribute(RTA_DATA(o), (int)RTA_PAYLOAD(o), TCA_TBF_PARMS) : NULL;
		if (a)
			shape->ingress = ((struct tc_tbf_qopt *)RTA_DATA(a))->rate.rate * 8ull;
		a = o ? attribute(RTA_DATA(o), (int)RTA_PAYLOAD(o), TCA_TBF_RATE64) : NULL;
		if (a) {
			memcpy(&shape->ingress, RTA_DATA(a), sizeof(shape->ingress));
			shape->ingress *= 8;
		}
		m = begin(&n, "read a limit", RTM_GETTFILTER, NLM_F_ECHO, link.index);
		m->tcm_parent = TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_INGRESS);
		m->tcm_handle = 1;
		m->tcm_info = TC_H_MAKE((uint32_t)FILTER_PRIO << 16, htons(ETH_P_ALL));
		netlink_put_string(&n, TCA_KIND, "bpf");
		o = options(&n, "bpf", buffer, sizeof(buffer));
		a = o ? attribute(RTA_DATA(o), (int)RTA_PAYLOAD(o), TCA_BPF_NAME) : NULL;
		if (a) {
			unsigned long long egress;
			long long priority;

			if (sscanf(RTA_DATA(a), NAME, &egress, &priority) == 2) {
				shape->egress = egress;
				shape->prioritized = priority >= 0;
				shape->priority = shape->prioritized ? (uint32_t)priority : 0;
			}
		}
	}
	netlink_close(&n);
	return error;
}
