/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * ctrmgr-net: the managed bridge and its NAT rules. Runs when the bridge is first needed, not at
 * every start. Every step may be repeated, and two at once meet in the kernel, not here. */
#include "netlink.h"
#include "shape.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <linux/if.h>
#include <linux/if_link.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

enum { EXIT_SPEC = 2, EXIT_NOT_FOUND = 3, EXIT_CONFLICT = 4, EXIT_HOST = 5, EXIT_HELPER = 7 };

#define USAGE \
	"usage: ctrmgr-net up BRIDGE IPV4/LENGTH|none IPV6/LENGTH|none [--nat]\n" \
	"       ctrmgr-net down BRIDGE\n" \
	"       ctrmgr-net status BRIDGE\n" \
	"       ctrmgr-net limit LINK INGRESS EGRESS PRIORITY|none\n" \
	"       ctrmgr-net limits LINK\n" \
	"       ctrmgr-net can-limit\n"

struct network {
	const char *bridge;
	const char *text[2]; /* IPv4, IPv6 as given */
	struct address address[2];
	bool nat;
};

__attribute__((format(printf, 2, 3))) static _Noreturn void fail(int code, const char *format, ...)
{
	va_list args;

	fputs("error: ", stderr);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	exit(code);
}

/* The name goes into nft's language and into paths: letters, digits, - and _ only. */
static void check_name(const char *name)
{
	static const char ALLOWED[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";

	if (!*name || strlen(name) >= IFNAMSIZ || name[strspn(name, ALLOWED)] || *name == '-')
		fail(EXIT_SPEC, "`%s` is not a name for a bridge", name);
}

static void parse_address(struct network *net, int which, const char *text)
{
	struct address *a = &net->address[which];
	const char *slash = strchr(text, '/');
	char host[INET6_ADDRSTRLEN], *end = NULL;
	unsigned long prefix = slash ? strtoul(slash + 1, &end, 10) : 0;

	if (!strcmp(text, "none"))
		return;
	a->family = which ? AF_INET6 : AF_INET;
	snprintf(host, sizeof(host), "%.*s", slash ? (int)(slash - text) : 0, text);
	if (!slash || slash[1] < '0' || slash[1] > '9' || *end || prefix < 1 || prefix > (which ? 128 : 32) ||
	    inet_pton(a->family, host, a->bytes) != 1)
		fail(EXIT_SPEC, "`%s` is not an IPv%d address with its prefix length", text, which ? 6 : 4);
	a->prefix = prefix;
	net->text[which] = text;
}

static void check(int error, const char *what, const char *bridge)
{
	if (error)
		fail(EXIT_HELPER, "`%s`: %s: %s", bridge, what, strerror(-error));
}

/* Of our own, so that it does not change with every link that comes and goes (a bridge without one
 * takes the lowest of its ports, and neighbours lose it for a while). */
static void random_mac(uint8_t mac[6])
{
	if (getrandom(mac, 6, 0) != 6)
		fail(EXIT_HELPER, "no random numbers: %s", strerror(errno));
	mac[0] = (mac[0] & 0xfc) | 2; /* local, not multicast */
}

static void create(struct netlink *n, const char *bridge, struct netlink_link *link)
{
	const char *failed;
	struct rtattr *info;
	uint8_t mac[6];
	int error = netlink_find(n, bridge, link);

	if (error == -ENODEV) {
		random_mac(mac);
		netlink_begin(n, "make the bridge", RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, sizeof(struct ifinfomsg));
		netlink_put_string(n, IFLA_IFNAME, bridge);
		netlink_put(n, IFLA_ADDRESS, mac, sizeof(mac));
		info = netlink_nest(n, IFLA_LINKINFO);
		netlink_put_string(n, IFLA_INFO_KIND, "bridge");
		netlink_end(n, info);
		error = netlink_run(n, &failed);
		/* EEXIST: somebody else was faster */
		check(error == -EEXIST ? 0 : error, failed, bridge);
		error = netlink_find(n, bridge, link);
	}
	check(error, "find the bridge", bridge);
	if (strcmp(link->kind, "bridge"))
		fail(EXIT_CONFLICT, "`%s` exists and is not a bridge", bridge);
}

static void configure(struct netlink *n, const struct network *net, int index)
{
	const char *failed;

	/* Before the addresses: while it is down, IPv6 ones do not get their route. */
	netlink_put_up(n, "set the bridge up", index);
	for (int which = 0; which < 2; which++)
		if (net->address[which].family)
			netlink_put_address(n, index, &net->address[which], NLM_F_REPLACE);
	check(netlink_run(n, &failed), failed, net->bridge);
}

static int write_setting(const char *path, const char *value)
{
	char old[16] = "";
	int fd = open(path, O_RDWR | O_CLOEXEC), error = 0;

	if (fd < 0)
		return -errno;
	if (read(fd, old, sizeof(old) - 1) < 0 || old[0] != value[0] || old[1] != '\n')
		error = pwrite(fd, value, strlen(value), 0) < 0 ? -errno : 0;
	close(fd);
	return error;
}

/* A host that forwards IPv6 ignores router advertisements, and would lose its own default route:
 * 2 means "listen all the same". Only where it listens now. */
static void keep_advertisements(void)
{
	glob_t found;
	char now;

	if (glob("/proc/sys/net/ipv6/conf/*/accept_ra", 0, NULL, &found))
		return;
	for (size_t i = 0; i < found.gl_pathc; i++) {
		int fd = open(found.gl_pathv[i], O_RDONLY | O_CLOEXEC);

		if (fd >= 0 && read(fd, &now, 1) == 1 && now == '1')
			write_setting(found.gl_pathv[i], "2");
		if (fd >= 0)
			close(fd);
	}
	globfree(&found);
}

static void forward(const struct network *net)
{
	if (net->address[0].family)
		check(write_setting("/proc/sys/net/ipv4/ip_forward", "1"), "forward IPv4", net->bridge);
	if (net->address[1].family) {
		keep_advertisements();
		check(write_setting("/proc/sys/net/ipv6/conf/all/forwarding", "1"), "forward IPv6", net->bridge);
	}
}

/* Runs nft; `script` is one transaction. Returns its exit code, 127 when there is no nft. */
static int nft(const char *script, bool quiet)
{
	char *const argv[] = {"nft", "-f", "-", NULL};
	posix_spawn_file_actions_t actions;
	size_t length = strlen(script);
	int pipes[2], status, error;
	pid_t pid;

	if (pipe2(pipes, O_CLOEXEC) < 0)
		fail(EXIT_HELPER, "run nft: %s", strerror(errno));
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, pipes[0], STDIN_FILENO);
	for (int fd = STDOUT_FILENO; quiet && fd <= STDERR_FILENO; fd++)
		posix_spawn_file_actions_addopen(&actions, fd, "/dev/null", O_WRONLY, 0);
	error = posix_spawnp(&pid, "nft", &actions, NULL, argv, environ);
	posix_spawn_file_actions_destroy(&actions);
	close(pipes[0]);
	if (!error && write(pipes[1], script, length) != (ssize_t)length)
		error = errno; /* its own message says more */
	close(pipes[1]);
	if (error == ENOENT)
		return 127;
	if (waitpid(pid, &status, 0) < 0 || !WIFEXITED(status))
		return 1;
	return WEXITSTATUS(status);
}

/* A table of its own for each bridge: it is replaced and removed as a whole, in one transaction, and
 * nobody else's rules are ever read or touched. */
static void add_rules(const struct network *net)
{
	char script[2048];
	int used, code;

	used = snprintf(script, sizeof(script),
			"table inet ctrmgr-%1$s {}\n"
			"delete table inet ctrmgr-%1$s\n"
			"table inet ctrmgr-%1$s {\n"
			" chain forward { type filter hook forward priority filter; policy accept;\n"
			"  iifname \"%1$s\" accept\n  oifname \"%1$s\" accept\n }\n",
			net->bridge);
	if (net->nat) {
		used += snprintf(script + used, sizeof(script) - used,
				 " chain postrouting { type nat hook postrouting priority srcnat;\n");
		for (int which = 0; which < 2; which++)
			if (net->text[which])
				used += snprintf(script + used, sizeof(script) - used,
						 "  %s saddr %s oifname != \"%s\" masquerade\n", which ? "ip6" : "ip",
						 net->text[which], net->bridge);
		used += snprintf(script + used, sizeof(script) - used, " }\n");
	}
	snprintf(script + used, sizeof(script) - used, "}\n");
	code = nft(script, false);
	if (code == 127)
		fail(EXIT_HOST, "`%s` needs `nft`, which is not installed\n\nhint: install the package nftables",
		     net->bridge);
	if (code)
		fail(EXIT_HOST, "`%s`: nft refused the rules (exit code %d)", net->bridge, code);
}

static void remove_rules(const char *bridge)
{
	char script[128];
	int code;

	/* adding it first makes the removal of an absent one succeed */
	snprintf(script, sizeof(script), "table inet ctrmgr-%1$s {}\ndelete table inet ctrmgr-%1$s\n", bridge);
	code = nft(script, false);
	if (code && code != 127) /* without nft there are no rules of ours */
		fail(EXIT_HOST, "`%s`: nft did not remove the rules (exit code %d)", bridge, code);
}

static bool have_rules(const char *bridge)
{
	char script[64];

	snprintf(script, sizeof(script), "list chain inet ctrmgr-%s postrouting\n", bridge);
	return nft(script, true) == 0;
}

static int up(struct netlink *n, const struct network *net)
{
	struct netlink_link link;

	create(n, net->bridge, &link);
	configure(n, net, link.index);
	forward(net);
	if (net->nat)
		add_rules(net);
	else
		remove_rules(net->bridge);
	return 0;
}

static int down(struct netlink *n, const char *bridge)
{
	struct netlink_link link;
	const char *failed;
	int error;

	remove_rules(bridge);
	error = netlink_find(n, bridge, &link);
	if (error == -ENODEV)
		return 0;
	check(error, "find the bridge", bridge);
	if (strcmp(link.kind, "bridge"))
		fail(EXIT_CONFLICT, "`%s` exists and is not a bridge", bridge);
	((struct ifinfomsg *)netlink_begin(n, "remove the bridge", RTM_DELLINK, 0, sizeof(struct ifinfomsg)))
		->ifi_index = link.index;
	error = netlink_run(n, &failed);
	check(error == -ENODEV ? 0 : error, failed, bridge);
	return 0;
}

static int status(struct netlink *n, const char *bridge)
{
	struct netlink_link link;
	int error = netlink_find(n, bridge, &link);

	if (error && error != -ENODEV)
		check(error, "find the bridge", bridge);
	if (error || strcmp(link.kind, "bridge")) {
		printf("bridge\tabsent\nnat\t%d\n", have_rules(bridge));
		return EXIT_NOT_FOUND;
	}
	printf("bridge\t%s\nnat\t%d\n", link.flags & IFF_UP ? "up" : "down", have_rules(bridge));
	return 0;
}

static uint64_t number(const char *text)
{
	char *end;
	unsigned long long value = strtoull(text, &end, 10);

	if (text[0] < '0' || text[0] > '9' || *end)
		fail(EXIT_SPEC, "`%s` is not a number", text);
	return value;
}

/* Rates in bits a second, of what goes to the instance and of what it sends; 0 is none. */
static int limit(char **words)
{
	struct net_shape shape = {.ingress = number(words[1]), .egress = number(words[2])};
	const char *failed;
	int error;

	snprintf(shape.link, sizeof(shape.link), "%.15s", words[0]);
	shape.prioritized = strcmp(words[3], "none") != 0;
	shape.priority = shape.prioritized ? (uint32_t)number(words[3]) : 0;
	error = net_shape(&shape, &failed);
	check(error, failed, words[0]);
	return 0;
}

static int limits(const char *name)
{
	struct net_shape shape = {0};

	snprintf(shape.link, sizeof(shape.link), "%.15s", name);
	check(net_shape_read(&shape), "find the link", name);
	printf("%llu %llu ", (unsigned long long)shape.ingress, (unsigned long long)shape.egress);
	printf(shape.prioritized ? "%u\n" : "none\n", shape.priority);
	return 0;
}

static int can_limit(void)
{
	const char *failed;
	int error = net_shape_probe(&failed);

	if (error)
		fail(EXIT_HOST, "%s: %s", failed, strerror(-error));
	return 0;
}

int main(int argc, char **argv)
{
	struct network net = {0};
	struct netlink n;
	const char *verb = argc > 1 ? argv[1] : "";
	bool is_up = !strcmp(verb, "up"), has_nat = argc == 6 && !strcmp(argv[5], "--nat");

	if (argc == 6 && !strcmp(verb, "limit"))
		return limit(argv + 2);
	if (argc == 3 && !strcmp(verb, "limits"))
		return limits(argv[2]);
	if (argc == 2 && !strcmp(verb, "can-limit"))
		return can_limit();
	if (is_up ? argc != 5 && !has_nat : argc != 3) {
		fputs(USAGE, stderr);
		return EXIT_SPEC;
	}
	signal(SIGPIPE, SIG_IGN); /* an nft that ends early tells by its exit code */
	net.bridge = argv[2];
	net.nat = has_nat;
	check_name(net.bridge);
	check(netlink_open(&n), "open a netlink socket", net.bridge);
	if (is_up) {
		parse_address(&net, 0, argv[3]);
		parse_address(&net, 1, argv[4]);
		return up(&n, &net);
	}
	if (!strcmp(verb, "down"))
		return down(&n, net.bridge);
	if (!strcmp(verb, "status"))
		return status(&n, net.bridge);
	fputs(USAGE, stderr);
	return EXIT_SPEC;
}
