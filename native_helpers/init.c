/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * ctrmgr-init: pid 1 of an instance whose image has no init. It reaps, and ends when it is asked to; busybox' `halt`,
 * `poweroff` and `reboot` are heard, which signal SIGUSR1, SIGUSR2 and SIGTERM. With arguments it runs them as its one
 * child and ends as that does. */
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/reboot.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define GRACE_MS 5000 /* between SIGTERM and the end for what still runs */

static void reap_all(pid_t child, int *code)
{
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
		if (pid == child)
			*code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* Everything else in the pid namespace gets SIGTERM and some time; the kernel kills the rest with us. Processes
 * that entered from outside are nobody's children here, so no SIGCHLD tells of their end: hence the short steps. */
static void shut_down(const sigset_t *set)
{
	struct timespec step = {.tv_nsec = 2000000};

	if (kill(-1, SIGTERM) && errno == ESRCH)
		return;
	for (int waited = 0; waited < GRACE_MS; waited += 2) {
		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
		if (kill(-1, 0) && errno == ESRCH)
			return;
		sigtimedwait(set, NULL, &step);
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
	sigaddset(&set, SIGUSR1);
	sigaddset(&set, SIGUSR2);
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
			if (signal == SIGTERM && !child)
				reboot(RB_AUTOBOOT); /* in a pid namespace: ends this process, by SIGHUP */
			return 0;
		}
	}
}
