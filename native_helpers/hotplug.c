/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Devices that come and go on the host while the instance runs. A rule is a part of a device: what must be true of a
 * host's node so that the device has it. The kernel's own uevents say what to look at, and sysfs whether it fits; what
 * is there already is looked at in the same way, after the first uevent could have been heard. */
#include "hotplug.h"
#include "names.h"

#include <linux/netlink.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#define BACKLOG     (1 << 20)
#define BURST       64
#define KERNEL_ONLY 1 /* the other group is what udev says */

static void trim(char *text)
{
	size_t length = strlen(text), skipped;

	while (length && strchr(" \t\n", text[length - 1]))
		text[--length] = '\0';
	skipped = strspn(text, " \t");
	memmove(text, text + skipped, length - skipped + 1);
}

/* A file of a directory so many above the node's. */
bool node_attribute(const struct monitor *m, const struct node *n, unsigned above, const char *name, char *text,
		    size_t size)
{
	char path[BASE_MAX + 3 * DEPTH + 64];
	int length = snprintf(path, sizeof(path), "%s/", n->base);

	while (above--)
		length += snprintf(path + length, sizeof(path) - (size_t)length, "../");
	snprintf(path + length, sizeof(path) - (size_t)length, "%s", name);
	if (read_at(m->host_sys, path, text, size) < 0)
		return false;
	trim(text);
	return true;
}

bool sys_link(const struct monitor *m, const char *path, char *text, size_t size)
{
	ssize_t length = readlinkat(m->host_sys, path, text, size - 1);

	text[length > 0 ? length : 0] = '\0';
	return length > 0;
}

static const char *last(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

bool node_in_subsystem(const struct monitor *m, const struct node *n, const char *name)
{
	char path[BASE_MAX + 16], target[CTL_PATH_MAX];

	snprintf(path, sizeof(path), "%s/subsystem", n->base);
	return sys_link(m, path, target, sizeof(target)) && !strcmp(last(target), name);
}

bool node_open(const struct monitor *m, const char *kind, unsigned major, unsigned minor, struct node *n)
{
	char text[UEVENT_MAX];
	ssize_t size;

	*n = (struct node){.block = !strcmp(kind, "block"), .major = major, .minor = minor};
	snprintf(n->base, sizeof(n->base), "dev/%s/%u:%u", kind, major, minor);
	if (!sys_link(m, n->base, n->place, sizeof(n->place)))
		return major == NVIDIA_MAJOR && !n->block && nvidia_open(m, minor, n);
	snprintf(text, sizeof(text), "%s/uevent", n->base);
	size = read_at(m->host_sys, text, text, sizeof(text));
	return size > 0 && uevent_value(text, '\n', (size_t)size, "DEVNAME", n->name, sizeof(n->name) - 5) &&
	       plain_path(n->name, sizeof(n->name));
}

/* Whether what a rule says of the USB device, so many directories above the node's, is true. */
static bool usb_fits(const struct monitor *m, const struct part *rule, const struct node *n, unsigned above)
{
	static const struct {
		const char *key, *file;
	} files[] = {{"vendorid", "idVendor"},
		     {"productid", "idProduct"},
		     {"serial", "serial"},
		     {"busnum", "busnum"},
		     {"devnum", "devnum"}};
	bool named = false;
	char text[CTL_PATH_MAX];

	for (const char *word = rule->text; word < rule->text + rule->size; word += strlen(word) + 1) {
		const char *value = strchr(word, '=');
		size_t length = value ? (size_t)(value - word) : 0;

		for (size_t i = 0; value && i < ARRAY_SIZE(files); i++)
			if (strlen(files[i].key) == length && !strncmp(files[i].key, word, length) &&
			    (!node_attribute(m, n, above, files[i].file, text, sizeof(text)) ||
			     strcmp(text, value + 1)))
				return false;
		if (value && !strncmp(word, "socket=", 7) && strcmp(last(n->place), value + 1))
			return false;
		if (value && !strncmp(word, "subsystem=", 10) && !node_in_subsystem(m, n, value + 1))
			return false;
		named = named || !strncmp(word, "productid=", 10) || !strncmp(word, "devnum=", 7) ||
			!strncmp(word, "socket=", 7);
	}
	/* hubs only when they are named */
	return above || named || !node_attribute(m, n, 0, "bDeviceClass", text, sizeof(text)) || strcmp(text, "09");
}

const char *rule_word(const struct part *rule, const char *key)
{
	size_t length = strlen(key);

	for (const char *word = rule->text; word < rule->text + rule->size; word += strlen(word) + 1)
		if (!strncmp(word, key, length) && word[length] == '=')
			return word + length + 1;
	return NULL;
}

static bool fits(const struct monitor *m, const struct part *rule, const struct node *n)
{
	const char *source = rule_word(rule, "source");
	char text[16];
	bool device;

	if (source)
		return !strcmp(source, n->name) && n->block == !strcmp(rule->text, "block");
	if (!strstr(n->place, "/usb"))
		return false;
	device = node_attribute(m, n, 0, "idVendor", text, sizeof(text));
	if (!strcmp(rule->text, "usb") || device)
		return !strcmp(rule->text, "usb") && device && usb_fits(m, rule, n, 0);
	for (unsigned above = 1; above <= DEPTH; above++)
		if (node_attribute(m, n, above, "idVendor", text, sizeof(text)))
			return usb_fits(m, rule, n, above);
	return false;
}

bool node_is(const struct part *p, const struct node *n)
{
	return p->device.type == (n->block ? CTL_BLOCK : CTL_CHAR) && p->device.major == n->major &&
	       p->device.minor == n->minor;
}

/* A node of the host's that cannot be given is not there: nobody waits for an answer. */
int rule_prepare(struct monitor *m, const struct part *rule, const struct node *n)
{
	struct ctl_device d = rule->device;
	const char *path = rule_word(rule, "names") ? NULL : rule_word(rule, "path");
	struct failure ignored;
	struct stat s;
	OWNED int source = sys_openat2(m->host_dev, n->name, O_PATH, RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS);

	if (source < 0 && n->major == NVIDIA_MAJOR)
		m->look_at = now_ms() + PATIENCE; /* its driver leaves it to others to make the node */
	if (source < 0 || fstat(source, &s) || s.st_rdev != makedev(n->major, n->minor) ||
	    (s.st_mode & S_IFMT) != (n->block ? S_IFBLK : S_IFCHR))
		return -1;
	d.type = n->block ? CTL_BLOCK : CTL_CHAR;
	d.major = n->major;
	d.minor = n->minor;
	snprintf(d.path, sizeof(d.path), "/dev/%.*s", (int)sizeof(d.path) - 6, path ? path : n->name);
	if (lease_take(m, &d, rule_word(rule, "lease"))) {
		m->look_at = now_ms() + PATIENCE; /* nobody tells us when it is given back */
		return -1;
	}
	if (!part_prepare(m, &d, PLUGGING, source, "", 0, &ignored))
		return 0;
	lease_return(m, &d);
	return -1;
}

void rule_undo(struct monitor *m, const struct part *rule, const struct node *n)
{
	struct ctl_device d = rule->device;

	d.type = n->block ? CTL_BLOCK : CTL_CHAR;
	d.major = n->major;
	d.minor = n->minor;
	lease_return(m, &d);
}

bool rule_waits(struct monitor *m, const struct part *rule, const struct node *n)
{
	for (struct part *p = NULL; (p = part_next(m, rule->device.name, p));)
		if (node_is(p, n) || p->state == PART_SUSPENDED) /* what comes meanwhile comes when it is resumed */
			return false;
	return true;
}

static void plug(struct monitor *m, const struct part *rule, const struct node *n)
{
	struct failure ignored;

	if (rule_waits(m, rule, n) && !rule_prepare(m, rule, n) && part_commit(m, PLUGGING, &ignored))
		rule_undo(m, rule, n);
	parts_tell(m);
}

bool part_is_rule(const struct part *p)
{
	return p->state >= PART_HELD && p->device.type == CTL_RULE;
}

static bool consider(struct monitor *m, const char *kind, unsigned major, unsigned minor, void *unused)
{
	struct node n;

	(void)unused;
	if (!node_open(m, kind, major, minor, &n))
		return false;
	for (struct part *rule = m->part; rule < m->part + m->used; rule++)
		if (!part_is_rule(rule))
			continue;
		else if (!strcmp(rule->text, "model"))
			spare_consider(m, rule, &n);
		else if (fits(m, rule, &n))
			plug(m, rule, &n);
	return false;
}

static bool is_ruled(struct monitor *m, const char *name)
{
	for (struct part *p = NULL; (p = part_next(m, name, p));)
		if (part_is_rule(p))
			return true;
	return false;
}

/* Taken as by a detach: the number is refused first, then the node goes. Returns whether another may be there for it.
 */
static bool unplug(struct monitor *m, const struct node *n, const char *heard, size_t size)
{
	bool spare = false;
	struct failure ignored;

	for (struct part *p = m->part; p < m->part + m->used; p++) {
		struct part old = *p;

		if (p->state < PART_HELD || !node_is(p, n) || !is_ruled(m, p->device.name) || spare_moved_in(m, p))
			continue;
		p->state = PART_PREPARED; /* counts no more */
		part_filter(m, &old, &ignored);
		part_withdraw(m, p, &ignored);
		part_free(p);
		lease_return(m, &old.device);
		if (heard && old.state == PART_HELD)
			uevent_node(m, &old.device, false, heard, size);
		spare_forget(m, &old.device);
		spare = spare || spare_is_for(m, old.device.name);
		classes_show(m, &ignored);
	}
	return spare;
}

bool node_each(struct monitor *m, const char *kind, node_visit *visit, void *data)
{
	const struct dirent64 *entry;
	unsigned major, minor;
	OWNED int folder = -1;
	struct names names;
	char path[16];

	snprintf(path, sizeof(path), "dev/%s", kind);
	folder = openat(m->host_sys, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	names = NAMES(folder);
	while ((entry = names_next(&names)))
		if (sscanf(entry->d_name, "%u:%u", &major, &minor) == 2 && visit(m, kind, major, minor, data))
			return true;
	return !strcmp(kind, "char") && nvidia_each(m, visit, data);
}

static void drop_gone(struct monitor *m)
{
	for (struct part *p = m->part; p < m->part + m->used; p++) {
		struct node n = {
			.block = p->device.type == CTL_BLOCK, .major = p->device.major, .minor = p->device.minor};

		if (p->state >= PART_HELD && part_is_node(p) && is_ruled(m, p->device.name) && node_is_gone(m, p))
			unplug(m, &n, NULL, 0); /* what was said of it is lost for the instance, too */
	}
}

void hotplug_refresh(struct monitor *m)
{
	bool needed = false;

	for (const struct part *p = m->part; p < m->part + m->used; p++)
		needed = needed || part_is_rule(p);
	if (!needed) {
		close_fd(&m->uevents);
		close_fd(&m->host_sys);
		close_fd(&m->host_dev);
		return;
	}
	drop_gone(m);
	node_each(m, "char", consider, NULL);
	node_each(m, "block", consider, NULL);
	spare_links(m);
}

static int listen_to_kernel(void)
{
	struct sockaddr_nl address = {.nl_family = AF_NETLINK, .nl_groups = KERNEL_ONLY};
	OWNED int fd = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_KOBJECT_UEVENT);

	if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)))
		return -1;
	setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &(int){BACKLOG}, sizeof(int));
	return take_fd(&fd);
}

/* The monitor never leaves the host's network namespace; its mount namespace it has left. */
int hotplug_open(struct monitor *m, struct failure *f)
{
	OWNED int own = -1;
	int failed;

	if (m->uevents >= 0)
		return 0;
	own = openat(m->proc, "self/ns/mnt", O_RDONLY | O_CLOEXEC);
	if (own < 0 || setns(m->host_mounts, CLONE_NEWNS))
		return fail(f, "listen to the kernel", "the host's mount namespace");
	close_fd(&m->host_sys);
	close_fd(&m->host_dev);
	m->host_sys = open("/sys", O_PATH | O_DIRECTORY | O_CLOEXEC);
	m->host_dev = open("/dev", O_PATH | O_DIRECTORY | O_CLOEXEC);
	failed = m->host_sys < 0 || m->host_dev < 0;
	if (setns(own, CLONE_NEWNS))
		abort(); /* nothing may be done for an instance from the host's tree */
	m->uevents = failed ? -1 : listen_to_kernel();
	return m->uevents < 0 ? fail(f, "listen to the kernel", "uevents") : 0;
}

static void hear(struct monitor *m, const char *text, size_t size)
{
	char action[16], major[12], minor[12], subsystem[CTL_NAME_MAX];
	struct node n = {0};

	if (!uevent_value(text, '\0', size, "ACTION", action, sizeof(action)) ||
	    !uevent_value(text, '\0', size, "SUBSYSTEM", subsystem, sizeof(subsystem)))
		return;
	/* what a driver makes of a function that comes or goes need not have an event of its own */
	if (!strcmp(subsystem, "pci") && strcmp(action, "add") && spare_is_for(m, NULL))
		hotplug_refresh(m);
	else if (!strcmp(action, "remove") || !strcmp(subsystem, "net"))
		spare_links(m);
	if (!uevent_value(text, '\0', size, "MAJOR", major, sizeof(major)) ||
	    !uevent_value(text, '\0', size, "MINOR", minor, sizeof(minor)))
		return;
	n.block = !strcmp(subsystem, "block");
	n.major = (unsigned)strtoul(major, NULL, 10);
	n.minor = (unsigned)strtoul(minor, NULL, 10);
	if (!strcmp(action, "remove")) {
		/* the rest of it goes by its own events */
		if (unplug(m, &n, text, size))
			node_each(m, "char", consider, NULL);
	} else if (!strcmp(action, "add")) {
		consider(m, n.block ? "block" : "char", n.major, n.minor, NULL);
	}
}

void hotplug_serve(struct monitor *m)
{
	char text[UEVENT_MAX + 1];
	struct sockaddr_nl from = {0};
	struct iovec part = {text, UEVENT_MAX};

	/* then others are served, and the rest is read the next time: who has a device can let the kernel tell of it */
	for (int left = BURST; left; left--) {
		struct msghdr message = {
			.msg_name = &from, .msg_namelen = sizeof(from), .msg_iov = &part, .msg_iovlen = 1};
		ssize_t size = recvmsg(m->uevents, &message, MSG_DONTWAIT);

		if (size < 0 && errno == ENOBUFS) {
			hotplug_refresh(m); /* some are lost: what is there says the same */
			continue;
		}
		if (size < 0)
			return;
		text[size] = '\0';
		if (!from.nl_pid)
			hear(m, text, (size_t)size);
	}
}
