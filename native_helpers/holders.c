/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Who still has a device: open descriptors by device number, mappings by the node's own inode; of a file system,
 * whatever is in it, and working directories. What neither shows -
 * descriptors in flight over a socket, registered with io_uring - is not claimed to be found. */
#include "monitor.h"

#include <dirent.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

/* A node of the device, or a file system of its own. */
struct wanted {
	const struct part *part;
	struct stat inode;
};

struct search {
	struct monitor *m;
	struct ctl_holder *holders;
	int count;
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

static int count_fds(const struct search *s, int process)
{
	int fd = openat(process, "fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC), count = 0;
	DIR *list = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *entry;

	while (list && (entry = readdir(list)))
		count += entry->d_name[0] != '.' && is_wanted(s, fd, entry->d_name);
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
	holder.fds = count_fds(s, process);
	holder.maps = count_maps(s, process);
	if (!holder.fds && !holder.maps)
		return 0;
	describe(process, &holder);
	if (s->count < CTL_HOLDERS_MAX)
		s->holders[s->count] = holder;
	s->count++;
	return 0;
}

int holders_find(struct monitor *m, const char *name, struct ctl_holder *holders)
{
	static _Alignas(PAGE) struct search s; /* too large for the stack, and mostly not needed */
	int count;

	s.m = m;
	s.holders = holders;
	s.wanteds = 0;
	s.count = 0;
	for (struct part *p = NULL; (p = part_next(m, name, p));)
		if ((part_is_node(p) || p->device.type == CTL_FILESYSTEM) && !fstat(p->fd, &s.wanted[s.wanteds].inode))
			s.wanted[s.wanteds++].part = p;
	if (s.wanteds)
		cgroups_each(m, look, &s);
	count = s.count;
	madvise(&s, sizeof(s) / PAGE * PAGE, MADV_DONTNEED); /* begun anew each time */
	return count;
}
