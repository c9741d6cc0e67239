/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Where an emulator of a TPM runs: it is given whatever an instance's programs write to their TPM. */
#include "tpm.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_mount_setattr
#define SYS_mount_setattr 442
#endif
#ifndef MOUNT_ATTR_SIZE_VER0
struct mount_attr {
	__u64 attr_set, attr_clr, propagation, userns_fd;
};
#endif
#ifndef MOUNT_ATTR_RDONLY
#define MOUNT_ATTR_RDONLY 0x1
#define MOUNT_ATTR_NOSUID 0x2
#define MOUNT_ATTR_NODEV  0x4
#endif
#ifndef MOUNT_ATTR_NOEXEC
#define MOUNT_ATTR_NOEXEC 0x8
#endif
#ifndef AT_RECURSIVE
#define AT_RECURSIVE 0x8000
#endif

/* Where distributions have programs, what those link with, and how they are set up. Every other mount of the host's is
 * left: none stays busy because somebody emulates a TPM. */
static const char *const PROGRAMS[] = {"/usr", "/lib", "/lib64", "/bin", "/etc", "/nix", "/gnu"};

#define ROOM "/run"

static int set(const char *path, unsigned flags, __u64 on, __u64 off)
{
	struct mount_attr attributes = {.attr_set = on, .attr_clr = off};

	/* Before Linux 5.12 the files' owners alone keep it from writing. */
	return syscall(SYS_mount_setattr, -1, path, flags, &attributes, sizeof(attributes)) && errno != ENOSYS ? -1 : 0;
}

static int bring(const char *source, const char *inside)
{
	char path[64];

	snprintf(path, sizeof(path), ROOM "%s", inside);
	return mkdir(path, 0755) || mount(source, path, NULL, MS_BIND, NULL) ? -1 : 0;
}

const char *enclose(const char *state)
{
	char source[64];
	int fd;

	if (unshare(CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS))
		return "unshare";
	if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
		return "make mounts private";
	fd = open(state, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return "open its state";
	snprintf(source, sizeof(source), "/proc/self/fd/%d", fd);
	if (mount("none", ROOM, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=755,size=64k,nr_inodes=32"))
		return "make it a room";
	if (mkdir(ROOM "/run", 0755) || bring(source, STATE_INSIDE))
		return "mount its state";
	for (unsigned i = 0; i < sizeof(PROGRAMS) / sizeof(*PROGRAMS); i++)
		if (!access(PROGRAMS[i], F_OK) && bring(PROGRAMS[i], PROGRAMS[i]))
			return PROGRAMS[i];
	/* The new root over the old one, which goes. */
	if (chdir(ROOM) || syscall(SYS_pivot_root, ".", ".") || umount2(".", MNT_DETACH) || chdir("/"))
		return "enter its room";
	if (set("/", AT_RECURSIVE, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, 0) ||
	    set(STATE_INSIDE, 0, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC, MOUNT_ATTR_RDONLY))
		return "make mounts read-only";
	return chdir(STATE_INSIDE) ? "enter its state" : NULL;
}
