/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * ctrmgr-hook: what a device wants done inside an instance, by a process that is inside like any other and can reach
 * nothing of the host. `do|undo (NAME COUNT KIND ARGUMENT…)…`, where NAME is the device's and COUNT that of the words
 * that follow. Doing what is done already changes nothing; undoing takes away only what was made here, and what `run`
 * has done is not undone. `instance NAME` says whose hooks these are. `open PATH…` fails unless each of these nodes can
 * be opened. */
#include "hook.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#define PATH_SIZE 4096
#define MADE_AT   286331153 /* modification time of symlinks that we made: others' are not removed */
#define SECONDS   60
#define LD_FOLDER "/etc/ld.so.conf.d"

void die(const char *format, ...)
{
	int error = errno;
	va_list arguments;

	va_start(arguments, format);
	dprintf(2, "error: ");
	vdprintf(2, format, arguments);
	dprintf(2, error ? ": %s\n" : "\n", strerror(error));
	va_end(arguments);
	_exit(1);
}

static void make_parents(const char *path)
{
	char above[PATH_SIZE];

	snprintf(above, sizeof(above), "%s", path);
	for (char *slash = strchr(above + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		if (mkdir(above, 0755) && errno != EEXIST)
			die("the folder `%s`", above);
		*slash = '/';
	}
}

static bool leads_to(const char *link, const char *target)
{
	char now[PATH_SIZE];
	ssize_t length = readlink(link, now, sizeof(now) - 1);

	now[length > 0 ? length : 0] = '\0';
	return length > 0 && !strcmp(now, target);
}

static void do_symlink(const char *target, const char *link)
{
	const struct timespec times[2] = {{.tv_sec = MADE_AT}, {.tv_sec = MADE_AT}};

	make_parents(link);
	if (symlink(target, link)) {
		if (!leads_to(link, target))
			die("the symlink `%s`", link);
		return;
	}
	utimensat(AT_FDCWD, link, times, AT_SYMLINK_NOFOLLOW);
}

static void undo_symlink(const char *target, const char *link)
{
	struct stat s;

	if (!lstat(link, &s) && S_ISLNK(s.st_mode) && s.st_mtim.tv_sec == MADE_AT && leads_to(link, target))
		unlink(link);
}

/* What a file had before, on the file itself; of nodes, which go with their device, it cannot be kept. */
#define MODE_BEFORE "user.ctrmgr.mode"

static void undo_chmod(const char *mode, const char *path)
{
	unsigned long bits = strtoul(mode, NULL, 8), before;
	char text[8] = "";
	struct stat s;

	if (getxattr(path, MODE_BEFORE, text, sizeof(text) - 1) <= 0)
		return;
	before = strtoul(text, NULL, 8);
	if (!stat(path, &s) && (s.st_mode & 07777) == bits && before <= 07777) /* else the instance's own choice */
		(void)!chmod(path, (mode_t)before);
	removexattr(path, MODE_BEFORE);
}

static void do_chmod(const char *mode, const char *path)
{
	char *end, before[8];
	struct stat s;
	unsigned long bits = strtoul(mode, &end, 8);

	errno = EINVAL;
	if (*end || !*mode || bits > 07777)
		die("the mode `%s`", mode);
	if (!stat(path, &s) && (s.st_mode & 07777) != bits) {
		snprintf(before, sizeof(before), "%04o", s.st_mode & 07777);
		setxattr(path, MODE_BEFORE, before, strlen(before), XATTR_CREATE); /* of several, the first counts */
	}
	if (chmod(path, (mode_t)bits))
		die("the mode of `%s`", path);
}

static void folders_file(const char *name, char *path, size_t size)
{
	errno = EINVAL;
	if (strchr(name, '/') || (size_t)snprintf(path, size, "%s/00-ctrmgr-%s.conf", LD_FOLDER, name) >= size)
		die("the name `%s`", name);
}

/* Folders of libraries; of several rows of one device, the first makes the file anew. */
static void do_ldcache(const char *name, char *const *folders, int count, bool first)
{
	char path[PATH_SIZE];
	FILE *file;

	folders_file(name, path, sizeof(path));
	make_parents(path);
	if (first)
		unlink(path);
	file = fopen(path, "ae");
	for (int i = 0; file && i < count; i++)
		fprintf(file, "%s\n", folders[i]);
	if (!file || fclose(file))
		die("the file `%s`", path);
}

/* The instance's own program, which gets none of our descriptors. Without one there is no cache to be made. */
static int run_ldconfig(void)
{
	static const char *const places[] = {"/sbin/ldconfig", "/usr/sbin/ldconfig"};
	char *argv[] = {"ldconfig", NULL}, *env[] = {"PATH=/usr/sbin:/usr/bin:/sbin:/bin", NULL};
	int status, null;
	pid_t pid;

	for (size_t i = 0; i < sizeof(places) / sizeof(*places); i++) {
		if (access(places[i], X_OK))
			continue;
		pid = fork();
		if (!pid) {
			alarm(SECONDS - 5);
			null = open("/dev/null", O_RDWR);
			for (int fd = 0; fd < 3; fd++)
				dup2(null, fd);
			execve(places[i], argv, env);
			_exit(127);
		}
		return pid > 0 && waitpid(pid, &status, 0) == pid ? status : -1;
	}
	return 0;
}

/* For reading, or what the device is given for. Of a node only: what else lies there may wait for ever. */
static int open_all(char *const *paths, int count)
{
	struct stat s;

	alarm(SECONDS);
	for (int i = 0; i < count; i++) {
		int fd;

		errno = ENODEV;
		if (stat(paths[i], &s) || (!S_ISCHR(s.st_mode) && !S_ISBLK(s.st_mode)))
			die("`%s`", paths[i]);
		fd = open(paths[i], O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
		if (fd < 0 && (errno == EPERM || errno == EACCES))
			fd = open(paths[i], O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
		if (fd < 0)
			die("`%s`", paths[i]);
		close(fd);
	}
	return 0;
}

int main(int argc, char **argv)
{
	bool undo = argc > 1 && !strcmp(argv[1], "undo"), cache = false;
	const char *last = "", *instance = "";
	int words;

	if (argc > 2 && !strcmp(argv[1], "open"))
		return open_all(argv + 2, argc - 2);
	if (argc < 5 || (!undo && strcmp(argv[1], "do"))) {
		dprintf(2, "error: ctrmgr-hook is run by ctrmgr; see native_helpers/README.md\n");
		return 2;
	}
	alarm(SECONDS);
	umask(022);
	for (int at = 2; at < argc; at += 2 + words) {
		char *const *word = argv + at + 2;

		words = at + 1 < argc ? atoi(argv[at + 1]) : 0;
		errno = EINVAL;
		if (words < 1 || words > argc - at - 2)
			die("the hooks of `%s`", argv[at]);
		if (!strcmp(word[0], "symlink") && words == 3) {
			(undo ? undo_symlink : do_symlink)(word[1], word[2]);
		} else if (!strcmp(word[0], "chmod") && words == 3) {
			(undo ? undo_chmod : do_chmod)(word[1], word[2]);
		} else if (!strcmp(word[0], "instance") && words == 2) {
			instance = word[1];
		} else if (!strcmp(word[0], "run")) {
			if (!undo)
				run_program(instance, argv[at], word + 1, words - 1);
			alarm(SECONDS);
		} else if (!strcmp(word[0], "ldcache") && words > 1) {
			char path[PATH_SIZE];

			cache = true;
			folders_file(argv[at], path, sizeof(path));
			if (undo)
				unlink(path);
			else
				do_ldcache(argv[at], word + 1, words - 1, strcmp(last, argv[at]) != 0);
			last = argv[at];
		} else {
			errno = 0;
			die("`%s` is no hook that is known here", word[0]);
		}
	}
	errno = 0;
	if (cache && run_ldconfig() && !undo)
		die("`ldconfig` of the instance failed");
	return 0;
}
