/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Who still has a device: open descriptors by device number, mappings by the node's own inode; of a file system,
 * whatever is in it, and working directories. What neither shows -
 * descriptors in flight over a socket, registered with io_uring - is not claimed to be found.
 *
 * Some drivers can revoke what is open, for good. That works on an open file description, of which we take a copy of
 * the holder's descriptor; and only if it was opened by the device's own node in the instance, since one that the host
 * has opened and handed over is the host's, too.
 *
 * usbfs can be asked for less: that a description gives up the interfaces that it has claimed, and claims none any
 * more. Control requests still pass, so its holder is still one. */
#include "monitor.h"

#include <dirent.h>
#include <linux/hidraw.h>
#include <linux/input.h>
#include <linux/usbdevice_fs.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#ifndef HIDIOCREVOKE
#define HIDIOCREVOKE _IOW('H', 0x0D, int) /* Linux 6.12 */
#endif

#define INTERFACES 32 /* of a configuration, at most */

/* A node of the device, or a file system of its own. */
struct wanted {
	const struct part *part;
	struct stat inode;
	unsigned long revoke; /* what its driver has for that; 0: nothing */
};

struct search {
	struct monitor *m;
	struct ctl_holder *holders;
	int count, revoked;
	bool kill;
	size_t wanteds;
	struct wanted wanted[PARTS]; /* last: what is not filled takes no memory */
};

/* Never asks a filesystem: a FUSE server in the instance could let us wait for ever. */
static bool is_wanted(const struct search *s, int dir, const char *name)
{
	struct statx x;

	if (statx(dir, name, AT_STATX_DONT_SYNC, STATX_TYPE, &x))
		return false;
	for (size_t i = 0; i < s->wanteds; i++) {
		const struct ctl_device *d = &s->wanted[i].part->device;

		if (!part_is_node(s->wanted[i].part)) {
			if (makedev(x.stx_dev_major, x.stx_dev_minor) == s->wanted[i].inode.st_dev)
				return true;
		} else if ((x.stx_mode & S_IFMT) == (d->type == CTL_BLOCK ? S_IFBLK : S_IFCHR) &&
			   x.stx_rdev_major == d->major && x.stx_rdev_minor == d->minor) {
			return true;
		}
	}
	return false;
}

static unsigned long revocation(const struct monitor *m, const struct ctl_device *d)
{
	char place[512], class[512];

	if (d->type != CTL_CHAR || !uevent_place(m, d, place, class, sizeof(place)))
		return 0;
	if (!strcmp(class, "hidraw"))
		return HIDIOCREVOKE;
	if (!strcmp(class, "usb"))
		return USBDEVFS_DROP_PRIVILEGES;
	return !strcmp(class, "input") && !strncmp(strrchr(place, '/'), "/event", 6) ? EVIOCREVOKE : 0;
}

/* Whether nothing can be done with the descriptor any more. */
static bool take_open(int fd, unsigned long how)
{
	uint32_t none = 0;

	if (how != USBDEVFS_DROP_PRIVILEGES)
		return !ioctl(fd, how, NULL);
	for (unsigned interface = 0; interface < INTERFACES; interface++)
		(void)ioctl(fd, USBDEVFS_RELEASEINTERFACE, &interface);
	(void)ioctl(fd, USBDEVFS_DROP_PRIVILEGES, &none);
	return false;
}

/* What the descriptor is now is looked at on the copy: numbers of processes and descriptors may be others' by then. */
static bool take_back(struct search *s, pid_t pid, const char *number)
{
	struct stat inode;
	OWNED int process = -1;
	OWNED int copy = -1;
	bool can = false;

	for (size_t i = 0; i < s->wanteds; i++)
		can = can || s->wanted[i].revoke;
	if (!can)
		return false;
	process = sys_pidfd_open(pid);
	copy = process < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, process, atoi(number), 0);
	if (copy < 0 || fstat(copy, &inode))
		return false;
	for (size_t i = 0; i < s->wanteds; i++)
		if (s->wanted[i].revoke && inode.st_dev == s->wanted[i].inode.st_dev &&
		    inode.st_ino == s->wanted[i].inode.st_ino && take_open(copy, s->wanted[i].revoke)) {
			s->revoked++;
			return true;
		}
	return false;
}

static int count_fds(struct search *s, pid_t pid, int process)
{
	int fd = openat(process, "fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC), count = 0;
	DIR *list = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *entry;

	while (list && (entry = readdir(list)))
		count +=
			entry->d_name[0] != '.' && is_wanted(s, fd, entry->d_name) && !take_back(s, pid, entry->d_name);
	if (list)
		closedir(list);
	return count + is_wanted(s, process, "cwd") + is_wanted(s, process, "root");
}

static int count_maps(const struct search *s, int process)
{
	int fd = openat(process, "maps", O_RDONLY | O_CLOEXEC), count = 0;
	FILE *file = fd < 0 ? NULL : fdopen(fd, "re");
	unsigned long long number;
	unsigned major, minor;
	char line[512];
	bool whole = true;

	while (file && fgets(line, sizeof(line), file)) {
		if (whole && sscanf(line, "%*x-%*x %*s %*x %x:%x %llu", &major, &minor, &number) == 3)
			for (size_t i = 0; i < s->wanteds; i++)
				count += (number == s->wanted[i].inode.st_ino || !part_is_node(s->wanted[i].part)) &&
					 makedev(major, minor) == s->wanted[i].inode.st_dev;
		whole = strchr(line, '\n') != NULL;
	}
	if (file)
		fclose(file);
	return count;
}

/* The name, and the number inside: the last of NSpid. */
static void describe(int process, struct ctl_holder *holder)
{
	char status[2048], *line;

	read_at(process, "comm", holder->comm, sizeof(holder->comm));
	holder->comm[strcspn(holder->comm, "\n")] = '\0';
	if (read_at(process, "status", status, sizeof(status)) > 0 && (line = strstr(status, "\nNSpid:"))) {
		line[1 + strcspn(line + 1, "\n")] = '\0';
		holder->inner_pid = atoi(strrchr(line, '\t') + 1);
	}
}

static int look(pid_t pid, void *data)
{
	struct search *s = data;
	struct ctl_holder holder = {.pid = pid};
	char name[12];
	OWNED int process = -1;

	snprintf(name, sizeof(name), "%d", pid);
	process = openat(s->m->proc, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (process < 0)
		return 0;
	holder.fds = count_fds(s, pid, process);
	holder.maps = count_maps(s, process);
	if (!holder.fds && !holder.maps)
		return 0;
	describe(process, &holder);
	if (s->kill)
		members_kill(s->m, process, pid);
	if (s->count < CTL_HOLDERS_MAX)
		s->holders[s->count] = holder;
	s->count++;
	return 0;
}

int holders_find(struct monitor *m, const char *name, struct ctl_holder *holders, int *revoked, bool kill)
{
	static _Alignas(PAGE) struct search s; /* too large for the stack, and mostly not needed */
	int count;

	s.m = m;
	s.holders = holders;
	s.kill = kill;
	s.wanteds = 0;
	s.count = s.revoked = 0;
	for (struct part *p = NULL; (p = part_next(m, name, p));)
		if ((part_is_node(p) || p->device.type == CTL_FILESYSTEM) &&
		    !fstat(p->fd, &s.wanted[s.wanteds].inode)) {
			s.wanted[s.wanteds].revoke = revoked ? revocation(m, &p->device) : 0;
			s.wanted[s.wanteds++].part = p;
		}
	if (s.wanteds)
		cgroups_each(m, look, &s);
	count = s.count;
	if (revoked)
		*revoked = s.revoked;
	madvise(&s, sizeof(s) / PAGE * PAGE, MADV_DONTNEED); /* begun anew each time */
	return count;
}
