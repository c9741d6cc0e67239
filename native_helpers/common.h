/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * What every program here leans on: owned descriptors, failures that say what failed, and the
 * system calls that the C library does not have. */
#pragma once
#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <linux/openat2.h>
#include <linux/sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A descriptor that closes itself; -1 is none. */
static inline void close_fd(int *fd)
{
	if (*fd >= 0) {
		int saved = errno;

		close(*fd);
		errno = saved;
	}
	*fd = -1;
}
#define OWNED __attribute__((cleanup(close_fd)))

/* Hands a descriptor over to whoever takes the value. */
static inline int take_fd(int *fd)
{
	int taken = *fd;

	*fd = -1;
	return taken;
}

/* What failed, in words, with the kernel's answer. */
struct failure {
	int error;
	char step[64];
	char detail[256];
};

/* Records a failure with the current errno; always returns -1. */
__attribute__((format(printf, 3, 4))) static inline int fail(struct failure *f, const char *step, const char *format,
							     ...)
{
	va_list arguments;

	f->error = errno ? errno : EIO;
	snprintf(f->step, sizeof(f->step), "%s", step);
	va_start(arguments, format);
	vsnprintf(f->detail, sizeof(f->detail), format, arguments);
	va_end(arguments);
	return -1;
}

/* Names with single slashes between them, none of which leads anywhere else; it fits into `size` bytes. */
static inline bool plain_path(const char *path, size_t size)
{
	if (strnlen(path, size) == size)
		return false;
	for (;; path++) {
		size_t length = strcspn(path, "/");

		if (!length || (length <= 2 && !strncmp(path, "..", length)))
			return false;
		path += length;
		if (!*path)
			return true;
	}
}

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

static inline int sys_open_tree(int dir, const char *path, unsigned flags)
{
	return (int)syscall(SYS_open_tree, dir, path, flags);
}

static inline int sys_move_mount(int from, const char *from_path, int to, const char *to_path, unsigned flags)
{
	return (int)syscall(SYS_move_mount, from, from_path, to, to_path, flags);
}

static inline int sys_fsopen(const char *name)
{
	return (int)syscall(SYS_fsopen, name, FSOPEN_CLOEXEC);
}

static inline int sys_fsconfig(int fd, unsigned command, const char *key, const void *value, int aux)
{
	return (int)syscall(SYS_fsconfig, fd, command, key, value, aux);
}

static inline int sys_fsmount(int fd, unsigned attributes)
{
	return (int)syscall(SYS_fsmount, fd, FSMOUNT_CLOEXEC, attributes);
}

static inline int sys_mount_setattr(int fd, const char *path, unsigned flags, struct mount_attr *attr)
{
	return (int)syscall(SYS_mount_setattr, fd, path, flags, attr, sizeof(*attr));
}

static inline int sys_openat2(int dir, const char *path, uint64_t flags, uint64_t resolve)
{
	struct open_how how = {.flags = flags | O_CLOEXEC, .resolve = resolve};

	return (int)syscall(SYS_openat2, dir, path, &how, sizeof(how));
}

static inline int sys_pidfd_open(pid_t pid)
{
	return (int)syscall(SYS_pidfd_open, pid, 0);
}

static inline int sys_pidfd_send_signal(int pidfd, int signal)
{
	return (int)syscall(SYS_pidfd_send_signal, pidfd, signal, NULL, 0);
}

/* Writes a whole short text to a file below `dir`, which must exist. 0 or -1 with errno. */
static inline int write_at(int dir, const char *path, const char *text)
{
	OWNED int fd = openat(dir, path, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
	ssize_t length = (ssize_t)strlen(text), written;

	if (fd < 0)
		return -1;
	written = write(fd, text, (size_t)length);
	if (written >= 0 && written != length)
		errno = EIO;
	return written == length ? 0 : -1;
}

/* Reads a small file below `dir` whole and ends it with a NUL. Length or -1 with errno. */
static inline ssize_t read_at(int dir, const char *path, char *buffer, size_t size)
{
	OWNED int fd = openat(dir, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	ssize_t length = fd < 0 ? -1 : read(fd, buffer, size - 1);

	buffer[length > 0 ? length : 0] = '\0';
	return length;
}
