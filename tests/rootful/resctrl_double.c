/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * A kernel with resctrl, as far as the monitor sees: it is linked with these in place of the system calls (`ld
 * --wrap`). Plain directories with a file `.resctrl` behave: what is made in one is a group, `schemata` takes lines,
 * and `tasks`, which keeps all that was ever written to it, takes a task in a group of `mon_groups` only if it is in
 * the one above. With a file `.full` there is no room for another group, with `.fatal` whoever makes one is killed. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

int __real_fstatfs64(int fd, struct statfs *s);
int __real_mkdirat(int dir, const char *name, mode_t mode);
int __real_unlinkat(int dir, const char *name, int flags);
int __real_openat64(int dir, const char *name, int flags, ...);
ssize_t __real_write(int fd, const void *text, size_t size);
int __real_close(int fd);

static int dir_of = -1, schemata = -1, tasks = -1;

static bool has(int dir, const char *name)
{
	int error = errno;
	bool there = !faccessat(dir, name, F_OK, 0);

	errno = error;
	return there;
}

static void put(int dir, const char *name, const char *text)
{
	int fd = __real_openat64(dir, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

	if (fd < 0 || __real_write(fd, text, strlen(text)) < 0)
		_exit(98);
	__real_close(fd);
}

static char *get(int dir, const char *name)
{
	static char text[4096];
	int fd = __real_openat64(dir, name, O_RDONLY | O_CLOEXEC);
	ssize_t length = fd < 0 ? 0 : read(fd, text, sizeof(text) - 1);

	text[length > 0 ? length : 0] = '\0';
	__real_close(fd);
	return text;
}

int __real_access(const char *path, int mode);
int __wrap_access(const char *path, int mode)
{
	return strcmp(path, "/sys/fs/resctrl") ? __real_access(path, mode) : 0;
}

int __wrap_fstatfs64(int fd, struct statfs *s)
{
	int failed = __real_fstatfs64(fd, s);

	if (!failed && has(fd, ".resctrl"))
		s->f_type = RDTGROUP_SUPER_MAGIC;
	return failed;
}

int __wrap_mkdirat(int dir, const char *name, mode_t mode)
{
	int made;

	if (has(dir, ".resctrl") && has(dir, ".full")) {
		put(dir, has(dir, "info") ? "info/last_cmd_status" : "../../info/last_cmd_status", "Out of CLOSIDs\n");
		errno = ENOSPC;
		return -1;
	}
	if (__real_mkdirat(dir, name, mode))
		return -1;
	if (!has(dir, ".resctrl"))
		return 0;
	made = __real_openat64(dir, name, O_PATH | O_DIRECTORY | O_CLOEXEC);
	put(made, ".resctrl", "");
	put(made, "tasks", "");
	if (has(dir, "schemata")) {
		put(made, "schemata", get(dir, "schemata"));
		__real_mkdirat(made, "mon_groups", 0755);
		put(made, "mon_groups/.resctrl", "");
	}
	__real_close(made);
	if (has(dir, ".fatal"))
		raise(SIGKILL);
	return 0;
}

static void empty(int dir, const char *name)
{
	int fd = __real_openat64(dir, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *list = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *entry;

	while (list && (entry = readdir(list)))
		if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..") &&
		    __real_unlinkat(fd, entry->d_name, 0)) {
			empty(fd, entry->d_name);
			__real_unlinkat(fd, entry->d_name, AT_REMOVEDIR);
		}
	if (list)
		closedir(list);
}

int __wrap_unlinkat(int dir, const char *name, int flags)
{
	if (flags & AT_REMOVEDIR && has(dir, ".resctrl"))
		empty(dir, name);
	return __real_unlinkat(dir, name, flags);
}

int __wrap_openat64(int dir, const char *name, int flags, ...)
{
	bool ours = (flags & O_ACCMODE) == O_WRONLY && (!strcmp(name, "tasks") || !strcmp(name, "schemata")) &&
		    has(dir, ".resctrl");
	va_list list;
	int fd;

	va_start(list, flags);
	fd = __real_openat64(dir, name, flags | (ours && name[0] == 't' ? O_APPEND : 0), va_arg(list, int));
	va_end(list);
	if (ours) {
		*(name[0] == 't' ? &tasks : &schemata) = fd;
		dir_of = dir;
	}
	return fd;
}

int __wrap_close(int fd)
{
	tasks = fd == tasks ? -1 : tasks;
	schemata = fd == schemata ? -1 : schemata;
	return __real_close(fd);
}

/* The line of that resource is another one now. */
static ssize_t set(const char *line, size_t size)
{
	size_t length = strcspn(line, ":") + 1;
	char all[4096] = "";

	if (!strncmp(line + length, "0=0\n", 4)) {
		put(dir_of, "../info/last_cmd_status", "Need at least 1 bits in the mask\n");
		errno = EINVAL;
		return -1;
	}
	for (char *rest = NULL, *old = strtok_r(get(dir_of, "schemata"), "\n", &rest); old;
	     old = strtok_r(NULL, "\n", &rest)) {
		bool same = !strncmp(old + strspn(old, " "), line, length);

		snprintf(all + strlen(all), sizeof(all) - strlen(all), same ? "    %s" : "%s\n", same ? line : old);
	}
	put(dir_of, "schemata", all);
	return (ssize_t)size;
}

ssize_t __wrap_write(int fd, const void *text, size_t size)
{
	char line[32];

	if (fd >= 0 && fd == schemata) {
		return set(text, size);
	}
	if (fd < 0 || fd != tasks)
		return __real_write(fd, text, size);
	snprintf(line, sizeof(line), "%.*s\n", (int)size, (const char *)text);
	errno = EINVAL;
	if (!has(dir_of, "schemata") && !strstr(get(dir_of, "../../tasks"), line))
		return -1;
	return __real_write(fd, line, strlen(line)) < 0 ? -1 : (ssize_t)size;
}
