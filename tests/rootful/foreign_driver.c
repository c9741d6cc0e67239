/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * What native_helpers/ makes of what others say. `forged`: an answer of another process's waits in our netlink socket
 * when we ask; prints the name of the link that was found. `noise SEED ROUNDS FILE…`: each file, changed by chance, is
 * read by everything that reads bytes of that kind: only a sanitizer ends it early. */
#include "btf.h"
#include "monitor.h"
#include "netlink.h"
#include "plan.h"
#include "schemata.h"

#include <net/if.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>

/* Of uevent.c only what reads is called. */
int priv_call(enum priv_number number, const void *request, size_t size, const int in[], int count, int out[],
	      struct failure *f)
{
	(void)number, (void)request, (void)size, (void)in, (void)count, (void)out, (void)f;
	abort();
}

static int forged(void)
{
	struct sockaddr_nl to;
	socklen_t length = sizeof(to);
	struct netlink n, other;
	struct netlink_link found;

	if (unshare(CLONE_NEWNET) || netlink_open(&n) || netlink_open(&other) ||
	    bind(n.fd, (struct sockaddr *)&(struct sockaddr_nl){.nl_family = AF_NETLINK}, sizeof(to)) ||
	    getsockname(n.fd, (struct sockaddr *)&to, &length))
		return 1;
	((struct ifinfomsg *)netlink_begin(&other, "lie", RTM_NEWLINK, 0, sizeof(struct ifinfomsg)))->ifi_index = 1;
	netlink_put_string(&other, IFLA_IFNAME, "forged");
	if (sendto(other.fd, other.buffer, other.used, 0, (struct sockaddr *)&to, sizeof(to)) < 0 ||
	    netlink_find_index(&n, 1, &found))
		return 1;
	puts(found.name);
	return 0;
}

static uint64_t state;

static uint32_t chance(uint32_t below)
{
	state = state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(state >> 33) % below;
}

/* Bytes, pieces that are doubled or left out, ends that are missing. */
static size_t change(char *text, size_t size, size_t room)
{
	static const char words[] = "\t\n\\:=;,/.-0f9 \0\377";

	for (uint32_t times = chance(12); times && size; times--) {
		size_t at = chance((uint32_t)size), length = chance((uint32_t)(size - at) % 64 + 1);

		switch (chance(5)) {
		case 0: text[at] = (char)chance(256); break;
		case 1: text[at] = words[chance(sizeof(words))]; break;
		case 2:
			memmove(text + at, text + at + length, size - at - length);
			size -= length;
			break;
		case 3:
			if (size + length > room)
				break;
			memmove(text + at + length, text + at, size - at);
			size += length;
			break;
		default: size = chance(8) ? size : at;
		}
	}
	return size;
}

/* On the heap, so that the first byte beyond is one too many. */
static char *copy(const char *text, size_t size)
{
	char *own = malloc(size + 1);

	if (!own)
		exit(2);
	memcpy(own, text, size);
	own[size] = '\0';
	return own;
}

static void read_netlink(const char *bytes, size_t size)
{
	size_t room = NLMSG_LENGTH(sizeof(struct ifinfomsg)), used = size > room ? NLMSG_ALIGN(size) : room;
	struct nlmsghdr *answer = calloc(1, used);
	struct netlink_link link;

	if (!answer)
		exit(2);
	memcpy(answer, bytes, size < used ? size : used);
	answer->nlmsg_len = (uint32_t)(size > room ? size : room); /* the kernel says how long it is */
	netlink_read(answer, &link);
	free(answer);
}

static void read_btf(const char *bytes, size_t size)
{
	int fd = memfd_create("btf", MFD_CLOEXEC);
	struct btf types;

	if (fd < 0 || write(fd, bytes, size) != (ssize_t)size)
		exit(2);
	if (!btf_read(&types, fd)) {
		(void)btf_member(&types, "file", "f_inode");
		(void)btf_function(&types, "bpf_lsm_mmap_file");
	}
	btf_free(&types);
	close(fd);
}

static void read_all(const char *bytes, size_t size)
{
	static struct plan plan;
	struct failure f = {0};
	char *text = copy(bytes, size), value[16];

	(void)schemata_hold(text, "L3:0=f;1=ff0", chance(20));
	(void)schemata_hold("L3:0=f;1=ff0\nMB:0=100\n", text, chance(20));
	(void)uevent_value(text, '\n', size, "DEVNAME", value, sizeof(value));
	(void)uevent_value(text, '\0', size, "MAJOR", value, sizeof(value));
	plan = (struct plan){0};
	(void)plan_parse(&plan, text, &f);
	free(text);
	read_netlink(bytes, size);
	read_btf(bytes, size);
}

static void noise(const char *path, unsigned rounds)
{
	static char text[1 << 16], changed[1 << 16];
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t size = fd < 0 ? -1 : read(fd, text, sizeof(text) / 2);

	if (size <= 0)
		exit(2);
	close(fd);
	while (rounds--) {
		memcpy(changed, text, (size_t)size);
		read_all(changed, change(changed, (size_t)size, sizeof(changed)));
	}
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "forged"))
		return forged();
	if (argc < 5)
		return 2;
	state = strtoull(argv[2], NULL, 10);
	for (int i = 4; i < argc; i++)
		noise(argv[i], (unsigned)atoi(argv[3]));
	return 0;
}
