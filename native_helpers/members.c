/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Who is in the instance's cgroup. Numbers of processes that were read there may be another's by the time they are
 * used, maybe of the host's: what is done goes by a process's folder in /proc, or inside, where all numbers are the
 * instance's. */
#include "monitor.h"

#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>

static int each(int dir, int depth, int (*visit)(pid_t, void *), void *data)
{
	FILE *file = NULL;
	struct dirent *entry;
	DIR *list;
	int pid, result = 0, fd = openat(dir, "cgroup.procs", O_RDONLY | O_CLOEXEC);

	if (fd >= 0 && !(file = fdopen(fd, "re")))
		close_fd(&fd);
	while (file && !result && fscanf(file, "%d", &pid) == 1)
		result = pid > 0 ? visit(pid, data) : 0;
	if (file)
		fclose(file);
	fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	list = fd < 0 ? NULL : fdopendir(fd);
	while (list && !result && depth < CGROUP_DEPTH && (entry = readdir(list)))
		if (entry->d_type == DT_DIR && entry->d_name[0] != '.') {
			OWNED int below = openat(dir, entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

			if (below >= 0)
				result = each(below, depth + 1, visit, data);
		}
	if (list)
		closedir(list);
	return result;
}

int cgroups_each(struct monitor *m, int (*visit)(pid_t pid, void *data), void *data)
{
	return each(m->hierarchy[0].dir, 0, visit, data);
}

/* Our cgroup's name is in no other process's path; one that is too long to be shown is an instance's, too. */
bool members_have(const struct monitor *m, int process)
{
	size_t length = strlen(m->plan.cgroup);
	char cgroups[4096];

	if (read_at(process, "cgroup", cgroups, sizeof(cgroups)) <= 0)
		return errno == ENAMETOOLONG;
	for (const char *at = cgroups; (at = strstr(at, m->plan.cgroup)); at += length)
		if (at > cgroups && at[-1] == '/' && strchr("/\n", at[length]))
			return true;
	return false;
}

/* By the folder, which is as good as a pidfd, and by the number only where that is forbidden. */
void members_kill(const struct monitor *m, int process, pid_t pid)
{
	if (members_have(m, process) && sys_pidfd_send_signal(process, SIGKILL) && (errno == EPERM || errno == ENOSYS))
		kill(pid, SIGKILL);
}

static int kill_one(pid_t pid, void *data)
{
	const struct monitor *m = data;
	char name[12];
	OWNED int process = -1;

	snprintf(name, sizeof(name), "%d", pid);
	process = openat(m->proc, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (process >= 0)
		members_kill(m, process, pid);
	return 0;
}

void cgroups_kill(struct monitor *m)
{
	if (write_at(m->hierarchy[0].dir, "cgroup.kill", "1"))
		cgroups_each(m, kill_one, m);
	if (m->pidfd >= 0)
		(void)stop_signal(m, SIGKILL);
}

/* The child of this is inside, and ends with the instance if not before. */
static _Noreturn void enter(struct monitor *m, int (*work)(struct monitor *m, void *data, struct failure *f),
			    void *data, int report)
{
	struct failure f = {0};
	int status = -1;
	pid_t pid;

	if (setns(m->pidfd, CLONE_NEWPID))
		_exit(1);
	pid = fork();
	if (pid == 0) {
		if (work(m, data, &f))
			(void)!write(report, &f, sizeof(f));
		_exit(0);
	}
	_exit(pid > 0 && waitpid(pid, &status, 0) == pid && !status ? 0 : 1);
}

int members_inside(struct monitor *m, int (*work)(struct monitor *m, void *data, struct failure *f), void *data,
		   struct failure *f)
{
	OWNED int report = -1;
	int channel[2], status = -1;
	ssize_t said;
	pid_t pid;

	if (pipe2(channel, O_CLOEXEC))
		return fail(f, "enter the instance", "pipe");
	report = channel[0];
	pid = fork();
	if (pid == 0)
		enter(m, work, data, channel[1]);
	close(channel[1]);
	said = pid < 0 ? -1 : read(report, f, sizeof(*f));
	if (pid > 0)
		waitpid(pid, &status, 0);
	if (said == (ssize_t)sizeof(*f))
		return -1;
	errno = EIO;
	return status ? fail(f, "enter the instance", "its process numbers") : 0;
}
