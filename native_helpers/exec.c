/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * ctrmgr-exec, outside: asks the monitor for the instance's descriptors, starts the child (enter.c)
 * in its cgroup and pid namespace, and stays to pass signals on, and terminal and exit code back. */
#include "exec.h"

#include "flat.h"
#include "join.h"
#include "plan.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define USAGE \
	"usage: ctrmgr-exec --control PATH [--user U] [--group G] [--cwd DIR] [--env K=V]...\n" \
	"                   [--tty|--no-tty] [--hook] {--shell | -- COMMAND [ARGUMENT]...}\n"

#define KILLED_MS 1000 /* what waits for a file system of the instance's does not die */

static const int FORWARDED[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCONT, SIGTSTP, SIGWINCH};
static const int ENDING[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT}; /* as long as there is no command that may decide */

/* What on_signal() needs; a program of one child may keep it here. */
static struct {
	pid_t pid;
	int pidfd, master, status;
} child = {.master = -1};

static _Noreturn void quit(int code, int error, const char *text)
{
	terminal_restore();
	fprintf(stderr, "error: %s%s%s\n", text, error ? ": " : "", error ? strerror(error) : "");
	if (code == EXIT_HELPER && (error == ENOSYS || error == EPERM)) {
		fprintf(stderr,
			"\nhint: this kernel lacks it, or a sandbox forbids it: see docs/reference/kernel.md\n");
		code = EXIT_HOST;
	}
	exit(code);
}

static _Noreturn void usage(void)
{
	fputs(USAGE, stderr);
	exit(EXIT_SPEC);
}

/* Our programs lie together. */
static int our_own(const char *name)
{
	char path[4096];
	ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 64);
	char *slash;
	int fd;

	path[length > 0 ? length : 0] = '\0';
	slash = strrchr(path, '/');
	strcpy(slash ? slash + 1 : path, name);
	fd = open(path, O_PATH | O_CLOEXEC);
	if (fd < 0)
		quit(EXIT_HELPER, errno, name);
	return fd;
}

static void parse(struct options *o, int argc, char **argv)
{
	enum { CONTROL = 256, USER, GROUP, CWD, ENV, TTY, NO_TTY, SHELL, HOOK };
	static const struct option OPTIONS[] = {
		{"control", required_argument, 0, CONTROL},
		{"user", required_argument, 0, USER},
		{"group", required_argument, 0, GROUP},
		{"cwd", required_argument, 0, CWD},
		{"env", required_argument, 0, ENV},
		{"tty", no_argument, 0, TTY},
		{"no-tty", no_argument, 0, NO_TTY},
		{"shell", no_argument, 0, SHELL},
		{"hook", no_argument, 0, HOOK},
		{},
	};
	int option;

	*o = (struct options){.tty = -1, .program = -1, .env = calloc(argc, sizeof(char *))};
	if (!o->env)
		quit(EXIT_HELPER, errno, "start");
	while ((option = getopt_long(argc, argv, "+", OPTIONS, NULL)) >= 0) {
		switch (option) {
		case CONTROL: o->control = optarg; break;
		case USER: o->user = optarg; break;
		case GROUP: o->group = optarg; break;
		case CWD: o->cwd = optarg; break;
		case ENV: o->env[o->env_count++] = optarg; break;
		case TTY: o->tty = 1; break;
		case NO_TTY: o->tty = 0; break;
		case SHELL: o->shell = true; break;
		case HOOK: o->program = our_own("ctrmgr-hook"); break;
		default: usage();
		}
	}
	o->command = argv + optind;
	if (!o->control || o->shell == (optind < argc))
		usage();
}

/* A row of the plan that was changed since the start, with blanks: `@rlimit NAME SOFT HARD`, `@oom-score-adj NUMBER`.
 */
static void changed_row(struct instance *i, char *text)
{
	char *field[4], *rest = NULL;
	int count = 0;

	for (char *word = strtok_r(text + 1, " ", &rest); word && count < 4; word = strtok_r(NULL, " ", &rest))
		field[count++] = word;
	if (count)
		(void)confine_row(&i->confinement, field, count);
}

static void read_plan(struct instance *i)
{
	char *cursor, *next, *field[PLAN_FIELDS];
	struct stat st;
	int count = 0, used = 0;

	if (fstat(i->plan, &st) < 0 || st.st_size > 1 << 20 || !(i->text = calloc(1, st.st_size + 1)) ||
	    pread(i->plan, i->text, st.st_size, 0) != st.st_size)
		quit(EXIT_HELPER, errno, "read the instance's plan");
	if (!flat_counted(i->text))
		quit(EXIT_HELPER, 0, "the instance's plan is damaged");
	i->confinement = CONFINEMENT_NONE;
	for (cursor = i->text; (count = flat_row(&cursor, field, PLAN_FIELDS)) > 0 && used >= 0;) {
		used = confine_row(&i->confinement, field, count);
		if (!strcmp(field[0], "env") && count == 2 && strchr(field[1], '=') && i->env_count < PLAN_ENV_MAX)
			i->env[i->env_count++] = field[1];
	}
	if (count < 0 || used < 0)
		quit(EXIT_HELPER, 0, "the instance's plan is damaged");
	/* after the plan's own, which they replace */
	for (cursor = i->variables; cursor < i->variables + i->variables_size; cursor = next) {
		next = cursor + strlen(cursor) + 1;
		if (cursor[0] == '@')
			changed_row(i, cursor);
		else if (cursor[0] == '=' && i->groups < GROUPS_MAX)
			i->group[i->groups++] = (gid_t)strtoul(cursor + 1, NULL, 10);
		else if (cursor[0] != '=' && i->env_count < PLAN_ENV_MAX)
			i->env[i->env_count++] = cursor;
	}
	count = confine_load(&i->confinement);
	if (count < 0)
		quit(EXIT_HELPER, -count, "read the seccomp filter");
}

/* A closed 0, 1 or 2 would be taken by the next open(), and the command would get that. */
static void have_standard_descriptors(void)
{
	int fd;

	do
		fd = open("/dev/null", O_RDWR);
	while (fd >= 0 && fd <= STDERR_FILENO);
	if (fd < 0)
		_exit(EXIT_HELPER);
	close(fd);
}

static int block_signals(sigset_t *before, int *ending)
{
	sigset_t set, ends;

	signal(SIGCHLD, SIG_DFL); /* ignored, it would take the exit status away */
	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigaddset(&set, SIGTTOU);
	for (size_t n = 0; n < sizeof(FORWARDED) / sizeof(*FORWARDED); n++)
		sigaddset(&set, FORWARDED[n]);
	sigemptyset(&ends);
	for (size_t n = 0; n < sizeof(ENDING) / sizeof(*ENDING); n++)
		sigaddset(&ends, ENDING[n]);
	sigprocmask(SIG_BLOCK, &set, before);
	sigdelset(&set, SIGTTOU);
	*ending = signalfd(-1, &ends, SFD_CLOEXEC | SFD_NONBLOCK);
	return *ending < 0 ? -1 : signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

static void send_child(int signal)
{
	if (syscall(SYS_pidfd_send_signal, child.pidfd, signal, NULL, 0) && errno != ESRCH)
		kill(child.pid, signal); /* ours, and not reaped: its number is nobody else's */
}

/* Of the child, which is not the command yet, nothing stays. */
static void end_child(void)
{
	struct pollfd ended = {.fd = child.pidfd, .events = POLLIN};

	send_child(SIGKILL);
	if (poll(&ended, 1, KILLED_MS) > 0)
		waitpid(child.pid, NULL, 0);
	join_end();
}

/* The instance's root may stop or freeze the child as soon as that is inside, and it may wait for a file system of the
 * instance's: who called need not. What else he sends is for the command, and stays until that runs. */
static void await_note(int channel, int ending)
{
	struct pollfd wait[] = {{.fd = channel, .events = POLLIN}, {.fd = ending, .events = POLLIN}};
	struct signalfd_siginfo s;

	while (poll(wait, 2, -1) < 0 || !wait[0].revents)
		if (read(ending, &s, sizeof(s)) == sizeof(s)) {
			end_child();
			exit(EXIT_SIGNAL + (int)s.ssi_signo);
		}
}

/* Waits until the command runs. Takes the master of its terminal, if it has one. */
static void await_start(int channel, int ending)
{
	struct note note;
	int fd, count;

	for (;;) {
		fd = -1;
		await_note(channel, ending);
		count = receive_descriptors(channel, &note, sizeof(note), &fd, 1);
		if (count == 0)
			return;
		if (count != sizeof(note))
			quit(EXIT_HELPER, errno, "hear from the command");
		if (note.kind == NOTE_FAILURE) {
			end_child();
			quit(note.code, note.error, note.text);
		}
		child.master = fd;
		terminal_resize(child.master);
	}
}

static void pass_on(const struct signalfd_siginfo *s)
{
	/* From the caller's keyboard it was meant for everybody in the foreground. */
	if (s->ssi_code == SI_KERNEL)
		kill(-child.pid, s->ssi_signo);
	else
		send_child((int)s->ssi_signo);
}

static void suspend(void)
{
	terminal_restore();
	raise(SIGSTOP);
	if (child.master >= 0) {
		terminal_raw();
		terminal_resize(child.master);
	}
}

/* Reads what came. False when the command has ended. */
static bool on_signal(int signals)
{
	struct signalfd_siginfo s;
	bool running = true;

	while (read(signals, &s, sizeof(s)) == sizeof(s)) {
		if (s.ssi_signo == SIGCHLD)
			running = running && waitpid(child.pid, &child.status, WNOHANG) == 0;
		else if (s.ssi_signo == SIGWINCH && child.master >= 0)
			terminal_resize(child.master);
		else if (running)
			pass_on(&s);
		if (s.ssi_signo == SIGTSTP)
			suspend();
	}
	return running;
}

static int run_outside(int signals, int ending, int channel)
{
	struct pollfd wait = {.fd = signals, .events = POLLIN};

	await_start(channel, ending);
	close(ending);
	if (child.master >= 0) {
		terminal_raw();
		pty_relay(child.master, signals, on_signal);
		terminal_restore();
	} else {
		do
			poll(&wait, 1, -1);
		while (on_signal(signals));
	}
	join_end();
	if (WIFSIGNALED(child.status))
		return EXIT_SIGNAL + WTERMSIG(child.status);
	return WEXITSTATUS(child.status);
}

/* The socket lies in a folder of the instance's name. */
static const char *frozen(const char *control)
{
	static char text[512];
	const char *end = strrchr(control, '/'), *name = end;

	while (name && name > control && name[-1] != '/')
		name--;
	if (!end || end == name)
		return "the instance is frozen";
	snprintf(text, sizeof(text), "`%.*s` is frozen\n\nhint: `ctrmgr unfreeze %.*s`", (int)(end - name), name,
		 (int)(end - name), name);
	return text;
}

int main(int argc, char **argv)
{
	int proc, signals, ending, channel[2];
	struct instance instance;
	struct options options;
	const char *failed;
	sigset_t before;
	bool tty;

	have_standard_descriptors();
	parse(&options, argc, argv);
	tty = options.tty < 0 ? isatty(STDIN_FILENO) && isatty(STDOUT_FILENO) : options.tty;
	failed = join_ask(options.control, &instance);
	if (failed)
		quit(errno == ENOENT || errno == ECONNREFUSED ? EXIT_CONFLICT : EXIT_HELPER, errno, failed);
	read_plan(&instance);
	if (join_frozen(&instance))
		quit(EXIT_CONFLICT, 0, frozen(options.control));
	proc = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
	signals = block_signals(&before, &ending);
	if (proc < 0 || signals < 0 || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, channel) < 0)
		quit(EXIT_HELPER, errno, "start");
	child.pid = join_fork(&instance, &child.pidfd);
	if (child.pid < 0)
		quit(EXIT_HELPER, errno, "`clone3`: start a process in the instance's cgroup and pid namespace");
	if (!child.pid) {
		close(channel[0]);
		enter(&options, &instance, tty, channel[1], proc, &before);
	}
	close(channel[1]);
	if (instance.again >= 0)
		close(instance.again);
	return run_outside(signals, ending, channel[0]);
}
