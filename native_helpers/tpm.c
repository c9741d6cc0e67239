/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * ctrmgr-tpm: one emulated TPM of one instance, from before its emulator runs until after it has ended.
 *
 *     ctrmgr-tpm VTPMX INSTANCE STATE UID GID FOLDER PROGRAM
 *
 * It says `pid N` on stdout and waits: only when a byte comes on stdin (that it is written down where it runs) the TPM
 * is made, and PROGRAM run for it as UID and GID, with nothing but the TPM's own descriptor and FOLDER. It says `made
 * NODE NODE` when the TPM can be used, or `failed STEP: REASON`.
 *
 * It ends, and PROGRAM with it, when it is asked to (SIGTERM), when PROGRAM ends, and when the instance does: as long
 * as somebody has a lock on the folder INSTANCE a command is at it; then the monitor that has one on the file STATE
 * must live. Killed, it takes PROGRAM with it. The kernel takes the TPM away once nobody has its descriptor. */
#include "tpm.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PATIENCE_MS 30000 /* a new TPM makes its keys first */
#define GRACE_MS    2000  /* to write down that it was shut down in order: without that it counts as an attack */
#define TICK_MS     5
#define MOST_FILE   (4 << 20)
#define MOST_OPEN   64
#define TPM_FD      3
#define PROGRAM_FD  4

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_close_range
#define SYS_close_range 436
#endif

enum { VTPMX = 1, INSTANCE, STATE, UID, GID, FOLDER, PROGRAM, WORDS };

static volatile pid_t emulator;

static void nap(void)
{
	nanosleep(&(struct timespec){.tv_nsec = TICK_MS * 1000000L}, NULL);
}

static void __attribute__((noreturn)) fail(const char *step)
{
	dprintf(1, "failed %s: %s\n", step, strerror(errno));
	_exit(1);
}

/* Async-signal-safe. */
static void __attribute__((noreturn)) end(void)
{
	kill(emulator, SIGTERM);
	for (int waited = 0; waited < GRACE_MS; waited += TICK_MS) {
		if (waitpid(emulator, NULL, WNOHANG))
			_exit(0);
		nap();
	}
	kill(emulator, SIGKILL);
	waitpid(emulator, NULL, 0);
	_exit(0);
}

static void on_signal(int number)
{
	if (number == SIGTERM)
		end();
	if (waitpid(emulator, NULL, WNOHANG) == emulator)
		_exit(1);
}

static void limit(int what, rlim_t most)
{
	setrlimit(what, &(struct rlimit){.rlim_cur = most, .rlim_max = most});
}

/* The profile that distributions have for swtpm knows the folders of libvirt alone; what it may do here, `enclose`
 * says. */
static void leave_profile(void)
{
	int fd = open("/proc/self/attr/apparmor/exec", O_WRONLY | O_CLOEXEC);

	if (fd >= 0 && write(fd, "exec unconfined", 15) < 0)
		errno = 0; /* no AppArmor */
	if (fd >= 0)
		close(fd);
}

static void __attribute__((noreturn)) become(char **words, const struct proxy *proxy, int keeper)
{
	char *const argv[] = {words[PROGRAM],
			      "chardev",
			      "--tpm2",
			      "--fd",
			      "3",
			      "--tpmstate",
			      "dir=" STATE_INSIDE,
			      "--flags",
			      "not-need-init,startup-clear",
			      "--locality",
			      "allow-set-locality",
			      NULL};
	char *const environment[] = {"PATH=/usr/bin:/bin", NULL};
	uid_t uid = (uid_t)strtoul(words[UID], NULL, 10);
	gid_t gid = (gid_t)strtoul(words[GID], NULL, 10);
	int program = open(words[PROGRAM], O_RDONLY | O_CLOEXEC), null = open("/dev/null", O_RDWR | O_CLOEXEC);
	const char *step;
	sigset_t none;

	/* Both are moved out of the way of the numbers that they are about to have. */
	int fd = fcntl(proxy->fd, F_DUPFD_CLOEXEC, PROGRAM_FD + 1);
	program = fcntl(program, F_DUPFD_CLOEXEC, PROGRAM_FD + 1);
	if (program < 0 || null < 0 || fd < 0)
		fail(words[PROGRAM]);
	leave_profile();
	step = enclose(words[FOLDER]);
	if (step)
		fail(step);
	limit(RLIMIT_CORE, 0);
	limit(RLIMIT_FSIZE, MOST_FILE);
	limit(RLIMIT_NOFILE, MOST_OPEN);
	signal(SIGXFSZ, SIG_IGN);
	if (setgroups(0, NULL) || setresgid(gid, gid, gid) || setresuid(uid, uid, uid) ||
	    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0))
		fail("give up root");
	if (poll(&(struct pollfd){.fd = keeper, .events = POLLIN}, 1, 0)) /* it died before it could take this along */
		_exit(1);
	umask(077);
	if (dup2(null, 0) < 0 || dup2(2, 1) < 0)
		_exit(1);
	if (dup2(fd, TPM_FD) < 0 || dup3(program, PROGRAM_FD, O_CLOEXEC) < 0)
		_exit(1);
	syscall(SYS_close_range, PROGRAM_FD + 1, ~0U, 0);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	syscall(SYS_execveat, PROGRAM_FD, "", argv, environment, AT_EMPTY_PATH);
	dprintf(2, "%s: %s\n", words[PROGRAM], strerror(errno));
	_exit(127);
}

/* The nodes are there once the kernel has asked the emulator who it is. */
static bool wait_for(const struct proxy *proxy)
{
	for (int waited = 0; waited < PATIENCE_MS; waited += TICK_MS) {
		bool whole = true;
		for (int i = 0; i < NODES; i++)
			whole = whole && (!proxy->node[i][0] || !access(proxy->node[i], F_OK));
		if (whole)
			return true;
		nap();
	}
	errno = ETIMEDOUT;
	return false;
}

/* A descriptor of the monitor's that becomes readable when it ends; -1 when there is none. The caller holds the
 * instance's lock: no other monitor begins meanwhile. */
static int monitor_of(const char *state)
{
	char text[256];
	int pid = 0, fd = open(state, O_RDONLY | O_CLOEXEC);
	ssize_t length;

	if (fd < 0 || !flock(fd, LOCK_SH | LOCK_NB))
		return -1;
	for (int tries = 0; !pid && tries < 100; tries++) { /* it is written anew when the instance is frozen */
		length = pread(fd, text, sizeof(text) - 1, 0);
		text[length > 0 ? length : 0] = '\0';
		if (sscanf(text, "monitor\t%d\n", &pid) != 1)
			nap();
	}
	close(fd);
	return pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
}

static void drop_rights(void)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct rights[2] = {{.effective = 1 << CAP_KILL, .permitted = 1 << CAP_KILL}};

	if (syscall(SYS_capset, &header, rights))
		fail("give up rights");
}

/* Until no command is at the instance, and then until it ends. */
static void __attribute__((noreturn)) outlive(int instance, const char *state)
{
	struct pollfd monitor;

	while (flock(instance, LOCK_SH))
		;
	monitor = (struct pollfd){.fd = monitor_of(state), .events = POLLIN};
	flock(instance, LOCK_UN);
	while (monitor.fd >= 0 && poll(&monitor, 1, -1) != 1)
		;
	end();
}

static int run(char **words)
{
	struct proxy proxy = {.fd = -1};
	struct sigaction act = {.sa_handler = on_signal};
	sigset_t held;
	char go;
	int self = (int)syscall(SYS_pidfd_open, getpid(), 0);
	int instance = open(words[INSTANCE], O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	setsid();
	signal(SIGPIPE, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	signal(SIGINT, SIG_IGN);
	if (instance < 0)
		fail(words[INSTANCE]);
	dprintf(1, "pid %d\n", getpid());
	if (read(0, &go, 1) != 1)
		return 1;
	if (proxy_make(words[VTPMX], &proxy))
		fail(words[VTPMX]);
	sigemptyset(&held);
	sigaddset(&held, SIGCHLD);
	sigaddset(&held, SIGTERM);
	sigprocmask(SIG_BLOCK, &held, NULL);
	/* The first of a pid namespace: whatever it starts ends with it. */
	if (self < 0 || unshare(CLONE_NEWPID))
		fail("make a pid namespace");
	emulator = fork();
	if (emulator < 0)
		fail("fork");
	if (!emulator)
		become(words, &proxy, self);
	close(proxy.fd);
	drop_rights();
	sigaction(SIGCHLD, &act, NULL);
	sigaction(SIGTERM, &act, NULL);
	sigprocmask(SIG_UNBLOCK, &held, NULL);
	if (!wait_for(&proxy)) {
		dprintf(1, "failed wait for `%s`: %s\n", proxy.node[0], strerror(errno));
		end();
	}
	dprintf(1, "made %s %s\n", proxy.node[0], proxy.node[1]);
	for (int fd = 0; fd < 3; fd++)
		close(fd);
	outlive(instance, words[STATE]);
}

int main(int argc, char **argv)
{
	if (argc != WORDS || chdir("/"))
		return 2;
	return fork() ? 0 : run(argv);
}
