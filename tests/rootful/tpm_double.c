/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * In the place of the kernel's proxy, where there is none: nodes that this machine has, named in a file. With PROGRAM
 * defined, in the place of swtpm: it counts how often it was run with its state, writes down what it can reach, and
 * waits. Called `…-bad` it gives up at once, `…-deaf` does not end when asked to. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#ifdef PROGRAM
static int ends_with(const char *text, const char *end)
{
	return strlen(text) >= strlen(end) && !strcmp(text + strlen(text) - strlen(end), end);
}

int main(int argc, char **argv)
{
	const char *const paths[] = {"/etc/hostname", "/root/.profile", "/var/lib", "/dev/null",
				     "/proc/self",    "/sys/class",     "/tmp/new"};
	unsigned runs = 0;
	FILE *file = fopen("permall", "r");

	if (ends_with(argv[0], "-bad")) {
		fprintf(stderr, "swtpm: it is broken\n");
		return 1;
	}
	if (!ends_with(argv[0], "-deaf"))
		signal(SIGTERM,
		       _exit); /* nothing ends the first process of a pid namespace that it has no handler for */
	if (file) {
		if (fscanf(file, "%u", &runs) != 1)
			return 1;
		fclose(file);
	}
	file = fopen("permall", "w");
	if (!file)
		return 1;
	fprintf(file, "%u\n", runs + 1);
	fclose(file);
	file = fopen("facts", "w");
	for (int i = 1; i < argc; i++)
		fprintf(file, "%s ", argv[i]);
	for (unsigned i = 0; i < sizeof(paths) / sizeof(*paths); i++)
		fprintf(file, "\n%s %s", paths[i], access(paths[i], F_OK) ? strerror(errno) : "there");
	fprintf(file, "\nwrite %s\n", open("/usr/new", O_WRONLY | O_CREAT, 0600) < 0 ? strerror(errno) : "done");
	fclose(file);
	if (!fork()) {
		signal(SIGTERM, SIG_IGN); /* somebody who would rather stay */
		for (;;)
			pause();
	}
	for (;;)
		pause();
}
#else
#include "tpm.h"

int proxy_make(const char *path, struct proxy *proxy)
{
	FILE *file = fopen(path, "re");
	int count = file ? fscanf(file, "%63s %63s", proxy->node[0], proxy->node[1]) : 0;

	if (file)
		fclose(file);
	proxy->fd = eventfd(0, 0);
	return count == NODES && proxy->fd >= 0 ? 0 : -1;
}
#endif
