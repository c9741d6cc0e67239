/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * The child of ctrmgr-exec: born in the instance's cgroup and pid namespace, it joins the other
 * namespaces, gives up what init gave up, and becomes the command. Until exec it is not dumpable
 * and all its descriptors from outside are close-on-exec, so that nobody inside can look into it. */
#include "exec.h"

#include "join.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NAMESPACES   (CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWNET | CLONE_NEWCGROUP)
#define DEFAULT_PATH "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

#define KEPT 4 /* a program of ours, if it is that which is run */

static int channel_to_parent;

__attribute__((format(printf, 3, 4))) static _Noreturn void fail(int code, int error, const char *format, ...)
{
	struct note note = {.kind = NOTE_FAILURE, .code = code, .error = error};
	va_list args;

	va_start(args, format);
	vsnprintf(note.text, sizeof(note.text), format, args);
	va_end(args);
	send(channel_to_parent, &note, sizeof(note), MSG_NOSIGNAL);
	_exit(code);
}

static void send_master(int master)
{
	struct note note = {.kind = NOTE_PTY};
	struct iovec part = {&note, sizeof(note)};
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(int))];
	} control = {.header = {.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
	struct msghdr message = {
		.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};

	memcpy(CMSG_DATA(&control.header), &master, sizeof(master));
	if (sendmsg(channel_to_parent, &message, MSG_NOSIGNAL) < 0)
		fail(EXIT_HELPER, errno, "hand over the terminal");
}

/* Nobody inside may trace us or open our descriptors while we still hold the host's; and who is killed with SIGKILL
 * leaves nothing behind, wherever we are held up. Again after each change of ids, which takes both away. */
static void stay_ours(void)
{
	struct pollfd parent = {.fd = channel_to_parent};

	if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0)
		fail(EXIT_HELPER, errno, "become undumpable");
	if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0)
		fail(EXIT_HELPER, errno, "follow the parent");
	/* getppid() cannot tell: seen from this pid namespace the parent is always 0 */
	if (poll(&parent, 1, 0) && parent.revents & POLLHUP)
		_exit(EXIT_HELPER);
}

/* A command that has a directory of the host's open can go anywhere from there. */
static void refuse_directories(void)
{
	static const char *const names[] = {"input", "output", "error output"};
	struct stat s;

	for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
		if (!fstat(fd, &s) && S_ISDIR(s.st_mode))
			fail(EXIT_SPEC, EISDIR, "pass on the standard %s", names[fd]);
}

/* Everything that needs the rights of whoever called, before they are left behind. */
static void leave_host(struct instance *i, int proc)
{
	int error;

	/* A signal ignored by whoever started us (Python ignores these two) must not stay ignored. */
	signal(SIGPIPE, SIG_DFL);
	signal(SIGXFSZ, SIG_DFL);
	stay_ours();
	if (!join_renew(i))
		fail(EXIT_HELPER, errno, "hear from the instance's monitor");
	for (size_t n = 0; n < i->procs_count; n++)
		if (write(i->procs[n], "0", 1) < 0 && errno != ENODEV) /* a class that is gone since */
			fail(EXIT_HELPER, errno, "join the cgroups");
	error = confine_keyring();
	if (error)
		fail(EXIT_HELPER, -error, "make a session keyring");
	error = confine_limits(&i->confinement, 0);
	if (error)
		fail(EXIT_HELPER, -error, "set the resource limits");
	error = confine_oom(&i->confinement, proc, "self");
	/* whoever may not go so low keeps his own: the command is killed before its neighbours */
	if (error && error != -EACCES)
		fail(EXIT_HELPER, -error, "set `oom_score_adj`");
	if (setns(i->pidfd, NAMESPACES) < 0)
		fail(EXIT_HELPER, errno, "`setns`: enter the namespaces");
	/* We still carry the caller's ids, which own files outside: become the instance's root at once. */
	if (setgroups(0, NULL) < 0 || setresgid(0, 0, 0) < 0 || setresuid(0, 0, 0) < 0)
		fail(EXIT_HELPER, errno, "become the instance's root");
	stay_ours();
	if (chdir("/") < 0)
		fail(EXIT_HELPER, errno, "go to the instance's root directory");
	umask(022);
}

/* The terminal becomes the command's; its owner may open it again by name (/dev/pts/N). */
static void use_terminal(int slave, const struct user *user)
{
	/* -1: devpts gave it the group tty */
	if (fchown(slave, user->uid, -1) < 0)
		fail(EXIT_HELPER, errno, "give the terminal to uid `%u`", user->uid);
	if (ioctl(slave, TIOCSCTTY, 0) < 0)
		fail(EXIT_HELPER, errno, "take the terminal");
	for (int fd = 0; fd < 3; fd++)
		if (dup2(slave, fd) < 0)
			fail(EXIT_HELPER, errno, "take the terminal");
}

static void put(const char *name, const char *value)
{
	if (setenv(name, value, 1) < 0)
		fail(EXIT_HELPER, errno, "set `%s`", name);
}

/* The plan's environment, the user's, then what was asked for on the command line. */
static void make_environment(const struct options *o, const struct instance *i, const struct user *user,
			     const char *term, char *const caller[])
{
	clearenv();
	put("PATH", DEFAULT_PATH);
	for (size_t n = 0; n < i->env_count; n++)
		if (putenv(i->env[n]))
			fail(EXIT_HELPER, errno, "set the environment");
	/* after the plan's: those were meant for init */
	put("HOME", user->home);
	if (user->name[0]) {
		put("USER", user->name);
		put("LOGNAME", user->name);
	}
	if (o->shell)
		put("SHELL", user->shell);
	if (term)
		put("TERM", term);
	for (size_t n = 0; n < o->env_count; n++) {
		size_t length = strcspn(o->env[n], "=");
		char *entry = o->env[n];

		for (char *const *c = caller; !entry[length] && *c; c++)
			if (!strncmp(*c, o->env[n], length) && (*c)[length] == '=')
				entry = *c;
		if (entry[length] && putenv(entry))
			fail(EXIT_HELPER, errno, "set the environment");
	}
}

static void become(const struct options *o, const struct instance *i, struct user *user)
{
	for (size_t n = 0; n < i->groups && user->group_count < sizeof(user->groups) / sizeof(*user->groups); n++)
		user->groups[user->group_count++] = i->group[n];
	if (setgroups(user->group_count, user->groups) < 0)
		fail(EXIT_HELPER, errno, "set the supplementary groups of `%s`", o->user ? o->user : "root");
	if (setresgid(user->gid, user->gid, user->gid) < 0)
		fail(EXIT_HELPER, errno, "become gid `%u` (is it mapped in this instance?)", user->gid);
	if (setresuid(user->uid, user->uid, user->uid) < 0)
		fail(EXIT_HELPER, errno, "become uid `%u` (is it mapped in this instance?)", user->uid);
	stay_ours();
}

static void go_to_directory(const struct options *o, const struct user *user)
{
	char where[PATH_MAX];

	if (o->cwd ? chdir(o->cwd) < 0 : chdir(user->home) < 0 && chdir("/") < 0)
		fail(errno == ENOENT ? EXIT_NOT_FOUND : EXIT_SPEC, errno, "go to `%s`", o->cwd ? o->cwd : "/");
	/* A descriptor that leaked from outside must not become our directory, whatever `cwd` said. */
	if (!getcwd(where, sizeof(where)) || where[0] != '/')
		fail(EXIT_HELPER, 0, "`%s` is not inside the instance", o->cwd ? o->cwd : user->home);
}

static _Noreturn void run(const struct options *o, const struct user *user)
{
	char login[300], *shell[] = {login, NULL};
	const char *slash, *path = user->shell;

	if (o->program >= 0) {
		syscall(SYS_execveat, KEPT, "", o->command, environ, AT_EMPTY_PATH);
		path = o->command[0];
	} else if (!o->shell) {
		execvp(o->command[0], o->command);
		path = o->command[0];
	} else {
		if (access(path, X_OK) < 0)
			path = "/bin/sh";
		slash = strrchr(path, '/');
		snprintf(login, sizeof(login), "-%s", slash ? slash + 1 : path);
		execv(path, shell);
	}
	fail(errno == ENOENT ? EXIT_NO_COMMAND : EXIT_NOT_EXECUTABLE, errno, "run `%s`", path);
}

_Noreturn void enter(const struct options *o, struct instance *i, bool tty, int channel, int proc, const sigset_t *mask)
{
	char **caller = environ, *term = tty ? getenv("TERM") : NULL;
	const char *unknown, *step;
	int error, master, slave = -1;
	struct user user;

	channel_to_parent = channel;
	refuse_directories();
	leave_host(i, proc);
	unknown = identify(o->user, o->group, &user);
	if (unknown)
		fail(EXIT_NOT_FOUND, 0, "no such %s in the instance: `%s`", unknown,
		     unknown[0] == 'u' ? o->user : o->group);
	/* A session of its own: no controlling terminal of the host, whose input it could fake. */
	setsid();
	if (tty) {
		master = pty_open(&slave);
		if (master < 0)
			fail(EXIT_HELPER, -master, "open a terminal in the instance's `/dev/pts`");
		send_master(master);
		use_terminal(slave, &user);
	}
	make_environment(o, i, &user, term ? term : tty ? "linux" : NULL, caller);
	error = confine_inside(&i->confinement, proc, &step);
	if (error)
		fail(EXIT_HELPER, -error, "%s", step);
	become(o, i, &user);
	sigprocmask(SIG_SETMASK, mask, NULL);
	/* Last, all that came from outside goes, before the instance's paths are walked. */
	if (o->program >= 0 && (dup2(o->program, KEPT) < 0 || fcntl(KEPT, F_SETFD, FD_CLOEXEC) < 0))
		fail(EXIT_HELPER, errno, "keep the program");
	if (dup2(channel, 3) < 0 || fcntl(3, F_SETFD, FD_CLOEXEC) < 0 ||
	    close_range(o->program >= 0 ? KEPT + 1 : KEPT, ~0U, 0) < 0)
		fail(EXIT_HELPER, errno, "`close_range`: close descriptors");
	channel_to_parent = 3;
	go_to_directory(o, &user);
	run(o, &user);
}
