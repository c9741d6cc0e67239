/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * A kernel with virtual functions of InfiniBand, as far as the monitor sees (`ld --wrap`): what it is told of their
 * GUIDs is written beside the run directory. Like some drivers it takes no zeros. */
#include "monitor.h"
#include "netlink.h"

#include <linux/if_link.h>

int __real_netlink_run(struct netlink *n, const char **failed);

int __wrap_netlink_run(struct netlink *n, const char **failed)
{
	const struct nlmsghdr *message = (const struct nlmsghdr *)n->buffer;
	const struct rtattr *list = (const struct rtattr *)(n->buffer + NLMSG_LENGTH(sizeof(struct ifinfomsg)));
	const struct ifla_vf_guid *guid = (const void *)((const char *)list + 3 * sizeof(struct rtattr));
	OWNED int fd = -1;

	if (message->nlmsg_type != RTM_NEWLINK || message->nlmsg_len < NLMSG_LENGTH(sizeof(struct ifinfomsg) + 44) ||
	    (list->rta_type & NLA_TYPE_MASK) != IFLA_VFINFO_LIST)
		return __real_netlink_run(n, failed);
	for (int i = 0; i < 2; i++, guid = (const void *)((const char *)(guid + 1) + sizeof(struct rtattr)))
		if (!guid->guid)
			return -EINVAL;
	fd = openat(FD_RUN, "../guids-told", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	return write(fd, n->buffer, message->nlmsg_len) < 0 ? -errno : 0;
}
