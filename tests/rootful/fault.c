/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * A program that is wrong on purpose, in the place in which ours live: no environment, no descriptor, another
 * root, another user. What it does wrong must be reported all the same. */
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile int sink;

static void use_after_free(void)
{
	char *volatile gone = malloc(8); /* volatile: the compiler would see it, too */

	free(gone);
	sink = gone[3];
}

static void shift(int by)
{
	sink = 1 << by;
}

int main(int argc, char **argv)
{
	int status = 0;

	if (argc != 3 || chroot(argv[2]) || chdir("/") || setgid(65534) || setuid(65534) || prctl(PR_SET_DUMPABLE, 0) ||
	    syscall(SYS_close_range, 0, ~0u, 0))
		return 99;
	if (fork() == 0) {
		if (!strcmp(argv[1], "free"))
			use_after_free();
		if (!strcmp(argv[1], "shift"))
			shift(argc + 30);
		_exit(0);
	}
	wait(&status);
	return WEXITSTATUS(status);
}
