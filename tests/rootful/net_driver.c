/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Calls the monitor's network operations for a process: PID BRIDGE HOST INSIDE [4|6 ADDRESS PREFIX GATEWAY]…
 * Prints the time that they took, in microseconds. */
#include "priv_net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static int check(int error, const char *const *failed)
{
	if (error)
		printf("%s: %s\n", *failed, strerror(-error));
	return error;
}

int main(int argc, char **argv)
{
	struct net_link link = {.mac = {2, 0, 0, 0, 0, atoi(argv[1]) & 0xff}, .mtu = 1400};
	struct net_inside inside = {.link = 1};
	const char *failed;
	char path[64];
	double start;
	int netns;

	strncpy(link.bridge, argv[2], IFNAMSIZ);
	strncpy(link.host, argv[3], IFNAMSIZ);
	strncpy(link.inside, argv[4], IFNAMSIZ);
	for (int i = 5; i + 3 < argc; i += 4) {
		struct address *a = &inside.address[inside.addresses++], *g = &inside.gateway[inside.gateways++];

		a->family = g->family = argv[i][0] == '4' ? AF_INET : AF_INET6;
		a->prefix = atoi(argv[i + 2]);
		inet_pton(a->family, argv[i + 1], a->bytes);
		inet_pton(a->family, argv[i + 3], g->bytes);
	}
	snprintf(path, sizeof(path), "/proc/%s/ns/net", argv[1]);
	netns = open(path, O_RDONLY | O_CLOEXEC);
	start = now();
	if (check(net_link(netns, &link, &failed), &failed) || setns(netns, CLONE_NEWNET) < 0 ||
	    check(net_inside(&inside, &failed), &failed))
		return 1;
	printf("%.0f\n", now() - start);
	return 0;
}
