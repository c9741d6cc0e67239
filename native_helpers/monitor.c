/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * ctrmgr-monitor: starts one instance and stays with it until it has ended. */
#include "monitor.h"

#include <malloc.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#define CLOSED_MS    100
#define CONSOLE_LAST 64            /* readings, of a page each */
#define RUN_SHORT_NS 5000000000ull /* an init that ends sooner is not restarted at once */

int64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void open_log(struct monitor *m)
{
	struct stat s;

	m->console_log =
		openat(FD_INSTANCE, "console.log", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
	m->console_used = m->console_log >= 0 && !fstat(m->console_log, &s) ? (uint64_t)s.st_size : 0;
}

/* A console that nobody empties would block init, so what cannot be logged is dropped. */
static bool log_console(struct monitor *m)
{
	char text[4096];
	ssize_t length = read(m->console, text, sizeof(text));

	if (length <= 0)
		return false;
	if (m->console_used + (uint64_t)length > m->plan.console_size) {
		close_fd(&m->console_log);
		renameat(FD_INSTANCE, "console.log", FD_INSTANCE, "console.log.1");
		open_log(m);
	}
	if (m->console_log >= 0 && write(m->console_log, text, (size_t)length) == length)
		m->console_used += (uint64_t)length;
	return true;
}

static void record_exit(struct monitor *m)
{
	bool signaled = WIFSIGNALED(m->exit_status);
	char text[96];
	OWNED int fd = openat(FD_INSTANCE, "exit.tmp", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
	int length = snprintf(text, sizeof(text), "%s\t%d\t%llu\nend\n", signaled ? "signaled" : "exited",
			      signaled ? WTERMSIG(m->exit_status) : WEXITSTATUS(m->exit_status),
			      (unsigned long long)now_ns());

	if (fd >= 0 && write(fd, text, (size_t)length) == length)
		renameat(FD_INSTANCE, "exit.tmp", FD_INSTANCE, "exit");
}

/* reboot(2) in a pid namespace kills its init: by SIGHUP to restart, by SIGINT to halt. */
static bool wants_restart(const struct monitor *m)
{
	int signal = WIFSIGNALED(m->exit_status) ? WTERMSIG(m->exit_status) : 0;

	if (m->stopping || signal == SIGINT)
		return false;
	if (signal == SIGHUP)
		return true;
	return m->plan.restart == RESTART_ALWAYS || (m->plan.restart == RESTART_ON_FAILURE && m->exit_status != 0);
}

/* Begins again from nothing: a fresh process image in the host's mount namespace, with the lock still held. */
static void restart(struct monitor *m)
{
	static const int kept[] = {FD_PLAN, FD_INSTANCE, FD_RUN, FD_LOCK};
	char *argv[] = {"ctrmgr-monitor", "restart", NULL}, *env[] = {NULL};
	OWNED int plan = -1;

	if (now_ns() - m->started_ns < RUN_SHORT_NS)
		nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
	/* Not the plan that this run began with: a device that was detached since must not come back. */
	plan = openat(FD_INSTANCE, "plan", O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (plan < 0 || dup2(plan, FD_PLAN) < 0 || dup2(m->lock, FD_LOCK) < 0 || setns(m->host_mounts, CLONE_NEWNS))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(kept); i++)
		fcntl(kept[i], F_SETFD, 0);
	syscall(SYS_execveat, m->exe, "", argv, env, AT_EMPTY_PATH);
}

/* Whoever then sees or hears that it does not run may unmount what the instance's directory is on. */
static void let_go(struct monitor *m)
{
	close_fd(&m->console_log);
	close(FD_PLAN);
	close(FD_INSTANCE);
}

static _Noreturn void finish(struct monitor *m)
{
	control_trace_end(m);
	/* what is in it: who has it open elsewhere, handed on by an init that gave it up, could write for ever */
	for (int left = CONSOLE_LAST; left && m->console >= 0 && log_console(m); left--)
		;
	record_exit(m);
	mount_end(m);
	cgroups_remove(m);
	links_return(m);
	links_repair(m);
	resctrl_repair(m);
	if (wants_restart(m)) {
		control_end(m);
		restart(m);
	}
	guids_return(m);
	let_go(m);
	monitor_clean(m);
	control_end(m);
	_exit(0);
}

/* Init, or something that was left to us as the subreaper. */
static bool reap(struct monitor *m)
{
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
		if (pid == m->init) {
			m->exit_status = status;
			return true;
		}
	return false;
}

static void take_signal(struct monitor *m)
{
	struct signalfd_siginfo s;

	if (read(m->signals, &s, sizeof(s)) == (ssize_t)sizeof(s) && s.ssi_signo == SIGTERM && !m->stopping)
		stop_begin(m, 0); /* the host goes down */
}

/* Nothing on the heap or further down the stack outlives its request: hundreds of monitors wait with what they hold. */
static void give_back_memory(void)
{
	uintptr_t here = (uintptr_t)__builtin_frame_address(0) & ~(uintptr_t)(PAGE - 1);

	malloc_trim(0);
	madvise((void *)(here - 32 * PAGE), 31 * PAGE, MADV_DONTNEED);
}

static bool is_due(int64_t *at)
{
	bool due = *at && *at <= now_ms();

	if (due)
		*at = 0;
	return due;
}

static int64_t until_due(const struct monitor *m)
{
	const int64_t due[] = {m->stop_at, m->ask_at, m->look_at, m->console_at};
	int64_t at = 0, left;

	for (size_t i = 0; i < ARRAY_SIZE(due); i++)
		if (due[i] && (!at || due[i] < at))
			at = due[i];
	left = at ? at - now_ms() : -1;
	return at && left < 0 ? 0 : left;
}

_Noreturn void monitor_run(struct monitor *m)
{
	enum { PIDFD, LISTENER, SIGNALS, CONSOLE, UEVENTS, FIRST_CLIENT };
	struct pollfd p[FIRST_CLIENT + CLIENTS];

	for (;;) {
		int64_t left;

		if (is_due(&m->stop_at))
			cgroups_kill(m);
		if (is_due(&m->ask_at))
			stop_ask(m);
		if (is_due(&m->look_at))
			hotplug_refresh(m);
		(void)is_due(&m->console_at);
		left = until_due(m);
		p[PIDFD] = (struct pollfd){m->pidfd, POLLIN, 0};
		p[LISTENER] = (struct pollfd){m->listener, POLLIN, 0};
		p[SIGNALS] = (struct pollfd){m->signals, POLLIN, 0};
		p[CONSOLE] = (struct pollfd){m->console_at ? -1 : m->console, POLLIN, 0};
		p[UEVENTS] = (struct pollfd){m->uevents, POLLIN, 0};
		for (size_t i = 0; i < CLIENTS; i++)
			p[FIRST_CLIENT + i] = (struct pollfd){m->client[i].fd, POLLIN, 0};
		if (poll(p, ARRAY_SIZE(p), left > INT32_MAX ? INT32_MAX : (int)left) < 0)
			continue;
		if (p[PIDFD].revents && reap(m))
			finish(m);
		if (p[SIGNALS].revents) {
			take_signal(m);
			if (reap(m))
				finish(m);
		}
		/* init has closed its console; it may open it again, so ask later, not all the time */
		if (p[CONSOLE].revents & POLLIN)
			log_console(m);
		else if (p[CONSOLE].revents)
			m->console_at = now_ms() + CLOSED_MS;
		if (p[UEVENTS].revents)
			hotplug_serve(m);
		for (size_t i = 0; i < CLIENTS; i++)
			if (m->client[i].fd >= 0 && p[FIRST_CLIENT + i].revents)
				control_serve(m, &m->client[i]);
		if (p[LISTENER].revents)
			control_accept(m);
		give_back_memory();
	}
}

static void tell(const struct monitor *m, const struct failure *f)
{
	struct start_report r = {
		.version = CTL_VERSION, .error = f->error, .monitor_pid = getpid(), .init_pid = m->init};

	memcpy(r.step, f->step, sizeof(r.step));
	memcpy(r.detail, f->detail, sizeof(r.detail));
	(void)!write(FD_REPORT, &r, sizeof(r));
}

static void report(const struct monitor *m, const struct failure *f)
{
	tell(m, f);
	close(FD_REPORT);
}

int monitor_host_hooks(struct monitor *m, struct failure *f)
{
	struct failure question = {.error = -1};
	char answer;

	if (!m->plan.host_hooks)
		return 0;
	errno = ENOTCONN;
	if (m->again)
		return fail(f, "run the host's hooks", "nobody is there to run them");
	tell(m, &question);
	if (read(FD_REPORT, &answer, 1) == 1 && answer == 'g')
		return 0;
	errno = ECANCELED;
	return fail(f, "run the host's hooks", "whoever started the instance is gone, or one of them has failed");
}

static void block_signals(struct monitor *m)
{
	sigset_t set;

	signal(SIGPIPE, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigaddset(&set, SIGTERM);
	sigprocmask(SIG_BLOCK, &set, NULL);
	m->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

static void to_null(int fd)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	dup2(null, fd);
	if (null != fd)
		close(null);
}

/* Those of the host's init, as far as the hard ones of the caller can be left: his soft ones are for him. */
static void take_limits(void)
{
	for (int i = 0; i < RLIM_NLIMITS; i++) {
		struct rlimit limit;

		if (!prlimit(1, i, NULL, &limit) && setrlimit(i, &limit) && !getrlimit(i, &limit)) {
			limit.rlim_cur = limit.rlim_max;
			setrlimit(i, &limit);
		}
	}
}

/* Away from whoever called: no terminal, no descriptors or limits of his, nobody's child but init's. */
static void detach_from_caller(void)
{
	if (fork() != 0)
		_exit(0);
	setsid();
	for (int fd = 0; fd < (priv_trace >= 0 ? 2 : 3); fd++)
		to_null(fd);
	syscall(SYS_close_range, FD_REPORT + 1, ~0u, 0);
	(void)!chdir("/");
	umask(022);
	take_limits();
}

static void initialise(struct monitor *m)
{
	m->lock = m->proc = m->exe = m->init_program = m->hook_program = m->root = m->dev = m->host_mounts = m->filter =
		m->fence = -1;
	m->pidfd = m->console = m->console_log = m->listener = m->signals = m->uevents = m->host_sys = m->host_dev = -1;
	m->exit_status = -1;
	m->resctrl = m->group[0] = m->group[1] = -1;
	for (size_t i = 0; i < CLASSES; i++)
		m->class[i] = -1;
	for (size_t i = 0; i < CLIENTS; i++)
		m->client[i].fd = -1;
	for (int fd = FD_PLAN; fd <= FD_REPORT; fd++)
		fcntl(fd, F_SETFD, FD_CLOEXEC);
}

/* Kills and removes what a dead monitor has left; refuses while one lives. */
static int clean(struct monitor *m)
{
	struct failure f = {0};
	OWNED int lock = openat(FD_RUN, "state", O_RDWR | O_CLOEXEC | O_NOFOLLOW);

	m->lock = -1;
	if (lock >= 0 && flock(lock, LOCK_EX | LOCK_NB))
		fail(&f, "clean up", "it is running");
	else if (!monitor_open(m, &f))
		monitor_clean(m);
	report(m, &f);
	return f.error ? 7 : 0;
}

int main(int argc, char **argv)
{
	static struct monitor m;
	struct failure f = {0};
	const char *verb = argc == 2 ? argv[1] : "";
	bool again = !strcmp(verb, "restart");

	if (!again && strcmp(verb, "start") && strcmp(verb, "clean")) {
		dprintf(2, "ctrmgr-monitor is run by ctrmgr, with its descriptors; see native_helpers/README.md\n");
		return 2;
	}
	priv_trace = getenv("CTRMGR_DEBUG") ? 2 : -1;
	initialise(&m);
	if (!strcmp(verb, "clean"))
		return clean(&m);
	m.again = again;
	if (again) {
		m.lock = FD_LOCK;
		fcntl(FD_LOCK, F_SETFD, FD_CLOEXEC);
	} else {
		detach_from_caller();
	}
	prctl(PR_SET_NAME, "ctrmgr-monitor");
	block_signals(&m);
	if (monitor_open(&m, &f) || monitor_start(&m, &f)) {
		let_go(&m);
		if (!again)
			report(&m, &f);
		return 7;
	}
	if (!again)
		report(&m, &f);
	if (priv_trace >= 0)
		to_null(2);
	priv_trace = -1;
	open_log(&m);
	monitor_run(&m);
}
