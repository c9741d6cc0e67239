/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * What a link was on the host is written down before it goes. When its monitor is killed the kernel brings it back,
 * with the name, address and mtu that it had inside; whoever cleans up then gives it its own again. */
#include "flat.h"
#include "links.h"

#include <net/if.h>
#include <stdlib.h>
#include <time.h>

#define BACK_MS 3000 /* a namespace whose processes are all dead is taken down by and by */

static void write_address(const uint8_t *address, uint32_t size, char text[96])
{
	text[0] = '\0';
	for (uint32_t i = 0; i < size; i++)
		snprintf(text + strlen(text), 4, "%s%02x", i ? ":" : "", address[i]);
}

int links_record(struct monitor *m)
{
	OWNED int fd = -1;
	bool any = false;

	for (size_t i = 0; i < m->used; i++)
		any |= is_link(&m->part[i]) && moved_of(&m->part[i])->away;
	if (!any)
		return unlinkat(FD_RUN, "links", 0) && errno != ENOENT ? -1 : 0;
	fd = openat(FD_RUN, "links.new", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
	for (size_t i = 0; fd >= 0 && i < m->used; i++) {
		const struct moved *v = moved_of(&m->part[i]);
		char address[96], permanent[96];

		if (!is_link(&m->part[i]) || !v->away)
			continue;
		write_address(v->was.address, v->was.address_size, address);
		write_address(v->was.permanent, sizeof(v->was.permanent), permanent);
		if (dprintf(fd, "link\t%s\t%s\t%s\t%s\t%u\t%d\n", v->parent, v->was.device, permanent, address,
			    v->was.mtu, !!(v->was.flags & IFF_UP)) < 0)
			return -1;
	}
	return fd < 0 || dprintf(fd, "end\n") < 0 || renameat(FD_RUN, "links.new", FD_RUN, "links") ? -1 : 0;
}

struct lost {
	struct netlink_link was, now; /* now.index 0: not found */
};

static int recognise(const struct nlmsghdr *answer, void *data)
{
	struct lost *lost = data;
	struct netlink_link link;

	netlink_read(answer, &link);
	if (link_is(&link, &lost->was))
		lost->now = link;
	return 0;
}

/* Whether it is on the host: then it has its own name again, if that is free. */
static bool mend(struct lost *lost, int own)
{
	struct priv_netdev request = {.mtu = lost->was.mtu, .up = !!(lost->was.flags & IFF_UP)};
	struct failure ignored;
	struct netlink n;

	lost->now.index = 0;
	if (!netlink_open(&n)) {
		netlink_begin(&n, "list the links", RTM_GETLINK, NLM_F_DUMP, sizeof(struct ifinfomsg));
		(void)netlink_dump(&n, recognise, lost);
	}
	netlink_close(&n);
	request.index = (uint32_t)lost->now.index;
	memcpy(request.name, lost->was.name, sizeof(request.name));
	memcpy(request.address, lost->was.address, sizeof(request.address));
	request.address_size = lost->was.address_size;
	if (lost->now.index)
		(void)PRIV_CALL(PRIV_NETDEV, &request, NULL, &ignored, own, own, own);
	return lost->now.index;
}

void links_repair(struct monitor *m)
{
	char text[4096], *cursor = text, *field[7];
	int64_t until = now_ms() + BACK_MS;
	OWNED int own = own_namespace(m);
	int count;

	unlinkat(FD_RUN, "links.new", 0); /* a record that was not in place yet: nothing had moved by it */
	if (read_at(FD_RUN, "links", text, sizeof(text)) <= 0)
		return;
	while ((count = flat_row(&cursor, field, ARRAY_SIZE(field))) > 0) {
		struct lost lost = {0};

		if (count != ARRAY_SIZE(field) || strcmp(field[0], "link") || !field[2][0])
			continue; /* what is no hardware is gone with the instance */
		snprintf(lost.was.name, sizeof(lost.was.name), "%s", field[1]);
		snprintf(lost.was.device, sizeof(lost.was.device), "%s", field[2]);
		link_address(field[3], lost.was.permanent);
		lost.was.address_size = link_address(field[4], lost.was.address);
		lost.was.mtu = (uint32_t)strtoul(field[5], NULL, 10);
		lost.was.flags = field[6][0] == '1' ? IFF_UP : 0;
		while (!mend(&lost, own) && now_ms() < until)
			nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
	}
	unlinkat(FD_RUN, "links", 0);
}
