/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * `startContainer` hooks: a program of the instance's own is run in it as its root. */
#include "hook.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define WORDS 64

static void put_quoted(FILE *file, const char *text)
{
	for (; *text; text++) {
		unsigned char c = (unsigned char)*text;

		fprintf(file, c < 0x20 ? "\\u%04x" : c == '"' || c == '\\' ? "\\%c" : "%c", c);
	}
}

/* What a runtime tells its hooks on standard input, as the instance sees it: there its init is process 1. */
static int state(const char *instance, const char *device)
{
	int fd = memfd_create("state", MFD_CLOEXEC);
	FILE *file = fd < 0 ? NULL : fdopen(dup(fd), "w");

	if (!file)
		die("a file in memory");
	/* before init there is only the process that will be init, which is our parent then */
	fprintf(file, "{\"ociVersion\":\"1.0.2\",\"id\":\"");
	put_quoted(file, instance);
	fprintf(file, "\",\"status\":\"%s\",\"pid\":1,\"bundle\":\"/\",\"annotations\":{\"ctrmgr.device\":\"",
		getppid() == 1 ? "created" : "running");
	put_quoted(file, device);
	fprintf(file, "\"}}\n");
	if (fclose(file) || lseek(fd, 0, SEEK_SET))
		die("a file in memory");
	return fd;
}

static _Noreturn void become(const char *path, char **argv, char **env, int input, int output)
{
	sigset_t none;

	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	setsid();
	alarm(0);
	if (dup2(input, 0) == 0 && dup2(output, 1) == 1 && dup2(output, 2) == 2 && !chdir("/"))
		execve(path, argv, env);
	dprintf(output, "%s\n", strerror(errno));
	_exit(errno == ENOENT ? 127 : 126);
}

static int64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Its status; -1 when it took too long. What it leaves running is its own affair, unless it took too long. */
static int await(pid_t pid, int64_t ms)
{
	int64_t until = now_ms() + ms;
	int status;

	while (waitpid(pid, &status, WNOHANG) != pid) {
		if (now_ms() >= until) {
			kill(-pid, SIGKILL);
			kill(pid, SIGKILL);
			waitpid(pid, &status, 0);
			return -1;
		}
		nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
	}
	return status;
}

/* The last line that it wrote, printable. */
static void last_line(int fd, char *line, size_t size)
{
	char said[512];
	off_t end = lseek(fd, 0, SEEK_END), from = end > (off_t)sizeof(said) - 1 ? end - (off_t)sizeof(said) + 1 : 0;
	ssize_t length = pread(fd, said, sizeof(said) - 1, from);
	char *start;

	while (length > 0 && strchr("\n\r \t", said[length - 1]))
		length--;
	said[length > 0 ? length : 0] = '\0';
	start = strrchr(said, '\n');
	snprintf(line, size, "%.*s", (int)size - 1, start ? start + 1 : said);
	for (char *c = line; *c; c++)
		if ((unsigned char)*c < 0x20 || *c == 0x7f)
			*c = '?';
}

void run_program(const char *instance, const char *device, char *const *word, int words)
{
	char *argv[WORDS] = {0}, *env[WORDS] = {0}, line[150];
	int seconds, count, input, output, status;
	pid_t pid;

	errno = EINVAL;
	if (words < 3 || words >= WORDS || (seconds = atoi(word[0])) < 1 || (count = atoi(word[2])) < 1 ||
	    count > words - 3)
		die("the hook of `%s`", device);
	memcpy(argv, word + 3, (size_t)count * sizeof(*argv));
	memcpy(env, word + 3 + count, (size_t)(words - 3 - count) * sizeof(*env));
	input = state(instance, device);
	output = memfd_create("said", MFD_CLOEXEC);
	if (output < 0)
		die("a file in memory");
	alarm(0); /* its own time counts */
	pid = fork();
	if (pid < 0)
		die("the hook `%s`", word[1]);
	if (!pid)
		become(word[1], argv, env, input, output);
	status = await(pid, (int64_t)seconds * 1000);
	last_line(output, line, sizeof(line));
	close(input);
	close(output);
	errno = 0;
	if (status < 0)
		die("the hook `%s` has not ended within %d seconds", word[1], seconds);
	if (WIFSIGNALED(status))
		die("the hook `%s` was ended by signal %d", word[1], WTERMSIG(status));
	if (status)
		die("the hook `%s` failed with %d%s%s", word[1], WEXITSTATUS(status), *line ? ": " : "", line);
}
