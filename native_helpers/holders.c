/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Who still has a device: open descriptors by device number, mappings by the lease's own inode. What neither shows -
 * descriptors in flight over a socket, registered with io_uring - is not claimed to be found. */
#include "monitor.h"

#include <dirent.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

struct search {
	struct monitor *m;
	const struct lease *lease;
	struct stat inode;
	struct ctl_holder *holders;
	int count;
};

/* Never asks a filesystem: a FUSE server in the instance could let us wait for ever. */
static bool same_device(int dir, const char *name, const struct ctl_device *d)
{
	struct statx s;

	if (statx(dir, name, AT_STATX_DONT_SYNC, STATX_TYPE, &s))
		return false;
	return (s.stx_mode & S_IFMT) == (d->type == CTL_BLOCK ? S_IFBLK : S_IFCHR) && s.stx_rdev_major == d->major &&
	       s.stx_rdev_minor == d->minor;
}

static int count_fds(int process, const struct ctl_device *d)
{
	int fd = openat(process, "fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC), count = 0;
	DIR *list = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *entry;

	while (list && (entry = readdir(list)))
		count += entry->d_name[0] != '.' && same_device(fd, entry->d_name, d);
	if (list)
		closedir(list);
	return count;
}

static int count_maps(int process, const struct stat *inode)
{
	int fd = openat(process, "maps", O_RDONLY | O_CLOEXEC), count = 0;
	FILE *file = fd < 0 ? NULL : fdopen(fd, "re");
	unsigned long long number;
	unsigned major, minor;
	char line[512];
	bool whole = true;

	while (file && fgets(line, sizeof(line), file)) {
		if (whole && sscanf(line, "%*x-%*x %*s %*x %x:%x %llu", &major, &minor, &number) == 3)
			count += number == inode->st_ino && makedev(major, minor) == inode->st_dev;
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
	holder.fds = count_fds(process, &s->lease->device);
	holder.maps = count_maps(process, &s->inode);
	if (!holder.fds && !holder.maps)
		return 0;
	describe(process, &holder);
	if (s->count < CTL_HOLDERS_MAX)
		s->holders[s->count] = holder;
	s->count++;
	return 0;
}

int holders_find(struct monitor *m, const struct lease *lease, struct ctl_holder *holders)
{
	struct search s = {.m = m, .lease = lease, .holders = holders};

	if (fstat(lease->inode, &s.inode))
		return 0;
	cgroups_each(m, look, &s);
	return s.count;
}
