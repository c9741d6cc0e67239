/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * The process that becomes the instance's init. */
#include "monitor.h"

#include <grp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define HOOK_MS 70000
#define DAY_MS  86400000

static _Noreturn void give_up(struct child *c, const char *step, const char *detail)
{
	struct failure f = {0};

	fail(&f, step, "%s", detail);
	(void)!write(c->report, &f, sizeof(f));
	_exit(127);
}

static void expect(struct child *c, char what)
{
	char got;

	if (read(c->from_parent, &got, 1) != 1 || got != what)
		_exit(127); /* the monitor is gone, or has given up and says why itself */
}

/* The console's slave comes with the last byte. */
static int expect_console(struct child *c)
{
	char got;
	struct iovec part = {&got, 1};
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(int))];
	} control;
	struct msghdr message = {
		.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	struct cmsghdr *header;
	int slave;

	if (recvmsg(c->from_parent, &message, MSG_CMSG_CLOEXEC) != 1 || got != 'g' ||
	    !(header = CMSG_FIRSTHDR(&message)))
		_exit(127);
	memcpy(&slave, CMSG_DATA(header), sizeof(slave));
	return slave;
}

static void become_root(struct child *c)
{
	const struct plan *p = &c->m->plan;
	gid_t group[PLAN_GROUPS];
	size_t groups = 0;

	for (size_t i = 0; i < p->groups; i++)
		if (p->group[i].name)
			group[groups++] = p->group[i].gid;
	if (setgroups(groups, group) || setresgid(0, 0, 0) || setresuid(0, 0, 0))
		give_up(c, "become the instance's root", "setresuid");
	/* after the change of ids, which clears it */
	if (prctl(PR_SET_PDEATHSIG, SIGKILL))
		give_up(c, "tie init to its monitor", "PR_SET_PDEATHSIG");
}

static void signals_default(void)
{
	sigset_t none;

	for (int s = 1; s < NSIG; s++)
		signal(s, SIG_DFL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
}

/* Instead of a variable of that name, or behind the others. Returns how many there are now. */
static size_t set(char **env, size_t count, char *assignment)
{
	size_t length = strcspn(assignment, "=") + 1, i = 0;

	while (i < count && strncmp(env[i], assignment, length) != 0)
		i++;
	env[i] = assignment;
	return i == count ? count + 1 : count;
}

static void run_init(struct child *c)
{
	const struct plan *p = &c->m->plan;
	char *argv[PLAN_WORDS + 2], *env[2 * PLAN_WORDS + 2], bare[] = "container=lxc";
	bool builtin = !strcmp(p->init, "builtin");
	size_t n = 0;

	argv[n++] = builtin ? "ctrmgr-init" : p->init;
	for (size_t i = 0; i < p->arguments; i++)
		argv[n++] = p->argument[i];
	argv[n] = NULL;
	n = 0;
	for (size_t i = 0; i < p->envs; i++)
		env[n++] = p->env[i];
	if (!n)
		env[n++] = bare;
	for (size_t i = 0; i < p->device_envs; i++)
		if (p->device_env[i].name)
			n = set(env, n, p->device_env[i].text);
	env[n] = NULL;
	if (builtin)
		syscall(SYS_execveat, c->m->init_program, "", argv, env, AT_EMPTY_PATH);
	else
		execve(p->init, argv, env);
	give_up(c, "run init", builtin ? "execveat: ctrmgr-init" : p->init);
}

static _Noreturn void become_hooks(const struct child *c, int says)
{
	static char *argv[7 + PLAN_HOOKS * (2 + PLAN_HOOK_ARGS)], *env[1];
	static char count[PLAN_HOOKS][4];
	const struct plan *p = &c->m->plan;
	static char *const first[] = {"ctrmgr-hook", "do", "", "2", "instance"};
	size_t n = ARRAY_SIZE(first) + 1;

	memcpy(argv, first, sizeof(first));
	argv[n - 1] = p->name;
	for (size_t i = 0; i < p->hooks; i++) {
		if (!p->hook[i].name)
			continue;
		snprintf(count[i], sizeof(count[i]), "%zu", p->hook[i].words);
		argv[n++] = p->hook[i].name;
		argv[n++] = count[i];
		for (size_t word = 0; word < p->hook[i].words; word++)
			argv[n++] = p->hook[i].word[word];
	}
	if (n == ARRAY_SIZE(first) + 1)
		_exit(0);
	signals_default();
	umask(022);
	if (dup2(says, 2) >= 0)
		syscall(SYS_execveat, c->m->hook_program, "", argv, env, AT_EMPTY_PATH);
	_exit(127);
}

int child_hooks_ms(const struct plan *p)
{
	int64_t ms = HOOK_MS;

	for (size_t i = 0; i < p->hooks; i++)
		if (p->hook[i].name && !strcmp(p->hook[i].word[0], "run"))
			ms += atoi(p->hook[i].word[1]) * INT64_C(1000);
	return ms < HOOK_MS ? HOOK_MS : ms > DAY_MS ? DAY_MS : (int)ms;
}

/* What devices want done inside, before init may need it. The image's own programs run in it, as the instance's root
 * and confined like everything else; they must not look into us, who still have the host's descriptors, nor keep us. */
static void run_hooks(struct child *c)
{
	char said[200] = "";
	OWNED int process = -1;
	int channel[2], status = 0;
	int ms = child_hooks_ms(&c->m->plan);
	size_t length = 0;
	ssize_t got;
	pid_t pid;

	if (!c->m->plan.hooks)
		return;
	if (prctl(PR_SET_DUMPABLE, 0) || pipe2(channel, O_CLOEXEC) || (pid = fork()) < 0)
		give_up(c, "run the hooks", "fork");
	if (!pid)
		become_hooks(c, channel[1]);
	close(channel[1]);
	while (poll(&(struct pollfd){channel[0], POLLIN, 0}, 1, ms) > 0 && length < sizeof(said) - 1 &&
	       (got = read(channel[0], said + length, sizeof(said) - 1 - length)) > 0)
		length += (size_t)got;
	process = sys_pidfd_open(pid);
	if (process >= 0 && poll(&(struct pollfd){process, POLLIN, 0}, 1, ms) <= 0)
		kill(pid, SIGKILL);
	waitpid(pid, &status, 0);
	close(channel[0]);
	said[strcspn(said, "\n")] = '\0';
	errno = EIO;
	if (status)
		give_up(c, "run the hooks", length ? said : "`ctrmgr-hook` did not end as it should");
}

_Noreturn void child_main(struct child *c)
{
	const struct plan *p = &c->m->plan;
	const char *step = "confine init";
	int slave, proc, error;

	expect(c, 'm');
	if (unshare((p->net == NET_HOST ? 0 : CLONE_NEWNET) | CLONE_NEWCGROUP))
		give_up(c, "make namespaces", "unshare: network and cgroup namespaces");
	if (write(c->to_parent, "n", 1) != 1)
		_exit(127);
	slave = expect_console(c);
	become_root(c);
	/* Crossing into our user namespace makes every mount of the tree a locked slave. */
	if (unshare(CLONE_NEWNS) || chdir("/"))
		give_up(c, "make namespaces", "unshare: mount namespaces");
	if (p->hostname && sethostname(p->hostname, strlen(p->hostname)))
		give_up(c, "set the hostname", p->hostname);
	if (setsid() < 0 || ioctl(slave, TIOCSCTTY, 0) || dup2(slave, 0) < 0 || dup2(slave, 1) < 0 ||
	    dup2(slave, 2) < 0)
		give_up(c, "open the console", "dup2");
	proc = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
	error = proc < 0 ? -errno : confine_inside(&p->confinement, proc, &step);
	if (error) {
		errno = -error;
		give_up(c, "confine init", step);
	}
	run_hooks(c);
	signals_default();
	umask(022);
	run_init(c);
	abort();
}
