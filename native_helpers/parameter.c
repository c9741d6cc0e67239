/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * A kernel parameter of a running instance, set from a short-lived process in its network and IPC namespaces. */
#include "monitor.h"

#include <sched.h>
#include <sys/wait.h>

/* What it was before is told in `detail`, so that who asked can take it back; without a value that is all. */
static _Noreturn void inside(const struct monitor *m, const struct priv_sysctl *request, int report)
{
	struct failure f = {0}, before = {0};
	char path[sizeof(request->name) + 16];
	int failed;

	snprintf(path, sizeof(path), "proc/sys/%s", request->name);
	if (setns(m->pidfd, (m->plan.net == NET_HOST ? 0 : CLONE_NEWNET) | CLONE_NEWIPC)) {
		failed = fail(&f, "enter the instance's namespaces", "setns");
	} else {
		(void)read_at(m->root, path, before.detail, sizeof(before.detail));
		before.detail[strcspn(before.detail, "\n")] = '\0';
		failed = request->value[0] ? PRIV_CALL(PRIV_SYSCTL, request, NULL, &f, m->root) : 0;
	}
	(void)!write(report, failed ? &f : &before, sizeof(f));
	_exit(0);
}

int parameter_set(struct monitor *m, const char *name, const char *value, struct failure *f)
{
	struct priv_sysctl request = {.uid = m->root_uid, .gid = m->root_gid};
	OWNED int reading = -1;
	int channel[2];
	ssize_t said;
	pid_t pid;

	errno = EINVAL;
	if (!plain_path(name, sizeof(request.name)))
		return fail(f, "set a kernel parameter", "`%.60s`", name);
	snprintf(request.name, sizeof(request.name), "%.255s", name);
	snprintf(request.value, sizeof(request.value), "%.255s", value);
	if (pipe2(channel, O_CLOEXEC))
		return fail(f, "set a kernel parameter", "pipe");
	reading = channel[0];
	pid = fork();
	if (pid == 0)
		inside(m, &request, channel[1]);
	close(channel[1]);
	if (pid < 0)
		return fail(f, "set a kernel parameter", "fork");
	errno = EIO;
	said = read(reading, f, sizeof(*f));
	waitpid(pid, NULL, 0);
	if (said != (ssize_t)sizeof(*f))
		return fail(f, "set a kernel parameter", "`%.100s`: who should have set it died", name);
	return f->error ? -1 : 0;
}
