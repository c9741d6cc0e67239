/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * ctrmgr-init: pid 1 of an instance whose image has no init. It reaps, and ends when it is asked to. With
 * arguments it runs them as its one child and ends as that does. */
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define GRACE_S 5 /* between SIGTERM and the end for what still runs */

static void reap_all(pid_t child, int *code)
{
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
		if (pid == child)
			*code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* Everything else in the pid namespace gets SIGTERM and some time; the kernel kills the rest with us. */
static void shut_down(const sigset_t *set)
{
	struct timespec grace = {.tv_sec = GRACE_S};

	if (kill(-1, SIGTERM) && errno == ESRCH)
		return;
	for (;;) {
		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
		/* processes that entered are nobody's children here: only kill() sees whether they are still there */
		if (kill(-1, 0) && errno == ESRCH)
			return;
		if (sigtimedwait(set, NULL, &grace) != SIGCHLD)
			return;
	}
}

int main(int argc, char **argv)
{
	pid_t child = 0;
	int code = -1, signal;
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGPWR);
	sigprocmask(SIG_BLOCK, &set, NULL);
	if (argc > 1 && (child = fork()) == 0) {
		sigprocmask(SIG_UNBLOCK, &set, NULL);
		setsid();
		execvp(argv[1], argv + 1);
		_exit(errno == ENOENT ? 127 : 126);
	}
	for (;;) {
		signal = sigwaitinfo(&set, NULL);
		if (signal == SIGCHLD) {
			reap_all(child, &code);
			if (code >= 0)
				return code;
		} else if (signal > 0) {
			shut_down(&set);
			return 0;
		}
	}
}
