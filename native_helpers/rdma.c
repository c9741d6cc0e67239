/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * RDMA devices. A host shares them among all network namespaces, or has each in one (`rdma system`): there it moves to
 * the instance's, and without that its nodes could be opened by nobody inside. The kernel makes its nodes again when it
 * moves, under the lowest numbers that are free. */
#include "links.h"

#include <rdma/rdma_netlink.h>
#include <stdlib.h>

struct found {
	const char *name; /* asked for */
	uint32_t index;
	uint64_t node;
	bool there, apart;
};

static int read_answer(const struct nlmsghdr *answer, void *data)
{
	struct found *found = data;
	int length = (int)NLMSG_PAYLOAD(answer, 0);
	const char *name = "";
	uint32_t index = 0;

	for (struct rtattr *a = NLMSG_DATA(answer); RTA_OK(a, length); a = RTA_NEXT(a, length))
		switch (a->rta_type & NLA_TYPE_MASK) {
		case RDMA_NLDEV_ATTR_DEV_INDEX: memcpy(&index, RTA_DATA(a), sizeof(index)); break;
		case RDMA_NLDEV_ATTR_DEV_NAME: name = RTA_DATA(a); break;
		case RDMA_NLDEV_SYS_ATTR_NETNS_MODE: found->apart = !*(const uint8_t *)RTA_DATA(a); break;
		case RDMA_NLDEV_ATTR_CHARDEV: memcpy(&found->node, RTA_DATA(a), sizeof(found->node)); break;
		}
	if (found->name && !strcmp(name, found->name)) {
		found->index = index;
		found->there = true;
	}
	return 0;
}

static int ask(struct netlink *n, unsigned command, uint16_t flags, struct found *found)
{
	netlink_begin(n, "ask for RDMA devices", RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, command), flags, 0);
	return netlink_dump(n, read_answer, found);
}

int rdma_prepare(struct part *p, struct failure *f)
{
	struct found found = {.name = p->device.path}, *kept = calloc(1, sizeof(*kept));
	struct netlink n;
	int error = netlink_open_protocol(&n, NETLINK_RDMA);

	p->text = (char *)kept;
	p->size = sizeof(*kept);
	if (!error)
		error = ask(&n, RDMA_NLDEV_CMD_SYS_GET, 0, &found);
	if (!error)
		error = ask(&n, RDMA_NLDEV_CMD_GET, NLM_F_DUMP, &found);
	netlink_close(&n);
	if (!error && !found.there)
		error = -ENODEV;
	errno = -error;
	if (!error && kept)
		*kept = found;
	return error || !kept ? fail(f, "find the RDMA device", "`%s`", p->device.path) : 0;
}

/* Whether the nodes of a device are still those that were asked for. */
static bool has_nodes(struct monitor *m, const struct part *p, int netns, int own)
{
	struct found *found = (struct found *)p->text;
	struct netlink n;
	bool any = false, same = false;
	unsigned major, minor;

	found->node = 0;
	if (!netlink_open_in(&n, NETLINK_RDMA, netns, own)) {
		netlink_begin(&n, "ask for its node", RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_GET_CHARDEV), 0,
			      0);
		netlink_put_u32(&n, RDMA_NLDEV_ATTR_DEV_INDEX, found->index);
		netlink_put_string(&n, RDMA_NLDEV_ATTR_CHARDEV_TYPE, "uverbs");
		(void)netlink_dump(&n, read_answer, found);
	}
	netlink_close(&n);
	major = (found->node >> 8) & 0xfff;
	minor = (found->node & 0xff) | ((found->node >> 12) & 0xfff00);
	for (size_t i = 0; found->node && i < m->used; i++) {
		const struct part *node = &m->part[i];

		if (node->state == PART_FREE || node->device.type != CTL_CHAR ||
		    strcmp(node->device.name, p->device.name))
			continue;
		any |= node->device.major == major;
		same |= node->device.major == major && node->device.minor == minor;
	}
	return same || !any;
}

int rdma_place(struct monitor *m, struct part *p, struct failure *f)
{
	struct found *found = (struct found *)p->text;
	struct priv_rdma request = {found->index};
	OWNED int own = own_namespace(m), netns = start_namespace(m, "net");

	if (!found->apart)
		return 0;
	if (own < 0 || netns < 0 || PRIV_CALL(PRIV_RDMA, &request, NULL, f, own, netns, own))
		return f->error ? -1 : fail(f, "move the RDMA device", "the network namespaces");
	p->fd = fcntl(netns, F_DUPFD_CLOEXEC, 3);
	errno = ESTALE;
	return has_nodes(m, p, netns, own)
		       ? 0
		       : fail(f, "move the RDMA device", "`%s` has another node now", p->device.path);
}

int rdma_withdraw(struct monitor *m, struct part *p, struct failure *f)
{
	struct priv_rdma request = {((struct found *)p->text)->index};
	OWNED int own = own_namespace(m);

	if (p->fd >= 0 && PRIV_CALL(PRIV_RDMA, &request, NULL, f, p->fd, own, own))
		return -1;
	close_fd(&p->fd);
	return 0;
}

bool rdma_is_there(struct monitor *m, const struct part *p)
{
	const struct found *had = (const struct found *)p->text;
	struct found found = {.name = p->device.path};
	struct netlink n;
	OWNED int own = own_namespace(m);
	int error = own < 0 ? -errno : netlink_open_in(&n, NETLINK_RDMA, p->fd < 0 ? own : p->fd, own);

	if (error)
		return true; /* nobody can say that it is not */
	error = ask(&n, RDMA_NLDEV_CMD_GET, NLM_F_DUMP, &found);
	netlink_close(&n);
	return error || (found.there && found.index == had->index);
}
