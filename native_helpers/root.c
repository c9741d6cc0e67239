/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * The instance's tree: its root, /dev and what the kernel mounts in it. */
#include "start.h"

#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define TTY_GROUP 5 /* in every distribution; devpts hands terminals to it */

int start_root(struct start *s, struct failure *f)
{
	struct monitor *m = s->m;
	struct priv_overlay overlay = {m->root_uid, m->root_gid};
	struct priv_layer lower = {.read_only = 1}, upper = {0};
	OWNED int userns = m->plan.shifted ? -1 : start_namespace(m, "user"), place = -1, mount = -1;
	int in[PRIV_FDS], count = 2, failed = 0;
	struct stat below, top;

	place = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
	in[0] = place;
	if (priv_call(PRIV_LAYER, &upper, sizeof(upper), (int[]){s->own, userns}, 2, &in[1], f))
		return -1;
	for (size_t i = 0; !failed && i < m->plan.layers; i++, count += !failed)
		failed = priv_call(PRIV_LAYER, &lower, sizeof(lower), (int[]){s->layer[i], userns}, 2, &in[count], f);
	if (!failed)
		failed = priv_call(PRIV_OVERLAY, &overlay, sizeof(overlay), in, count, &mount, f);
	while (--count >= 1)
		close_fd(&in[count]);
	if (failed)
		return -1;
	/* The instance's tree becomes the monitor's own root: no path that it resolves from here on leads to the host,
	 * and no mount of the host is kept busy by us. */
	if (sys_move_mount(mount, "", AT_FDCWD, "/", MOVE_MOUNT_F_EMPTY_PATH))
		return fail(f, "enter the instance's root", "move_mount");
	if (fchdir(mount) || syscall(SYS_pivot_root, ".", ".") || umount2(".", MNT_DETACH) || chdir("/"))
		return fail(f, "enter the instance's root", "pivot_root");
	/* Whoever enters this mount namespace begins at what is on top of its root: that must be this tree, not the
	 * host. */
	if (stat("/", &below) || stat("/..", &top))
		return fail(f, "enter the instance's root", "stat");
	if (below.st_dev != top.st_dev) {
		errno = EXDEV;
		return fail(f, "enter the instance's root", "the host's root lies over it");
	}
	m->root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
	return m->root < 0 ? fail(f, "enter the instance's root", "open") : 0;
}

int start_dev(struct monitor *m, struct failure *f)
{
	struct priv_dev request = {m->root_uid, m->root_gid, plan_map(m->plan.gid, m->plan.gids, TTY_GROUP)};
	OWNED int point = -1;

	if (request.tty_gid == UINT32_MAX)
		request.tty_gid = m->root_gid;
	if (priv_call(PRIV_DEV, &request, sizeof(request), NULL, 0, &m->dev, f))
		return -1;
	priv_fs_ids(m->root_uid, m->root_gid);
	mkdirat(m->root, "dev", 0755);
	priv_fs_ids(0, 0);
	point = sys_openat2(m->root, "dev", O_PATH | O_DIRECTORY, RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS);
	if (point < 0)
		return fail(f, "mount /dev",
			    errno == ENOSYS || errno == EPERM ? "openat2" : "`/dev` in the image is no directory");
	if (sys_move_mount(m->dev, "", point, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH))
		return fail(f, "mount /dev", "move_mount");
	return 0;
}

static int set_parameters(const struct monitor *m, struct failure *f)
{
	struct priv_sysctl request;

	for (size_t i = 0; i < m->plan.sysctls; i++) {
		request = (struct priv_sysctl){.uid = m->root_uid, .gid = m->root_gid};
		snprintf(request.name, sizeof(request.name), "%.255s", m->plan.sysctl[i].name);
		snprintf(request.value, sizeof(request.value), "%.255s", m->plan.sysctl[i].value);
		if (PRIV_CALL(PRIV_SYSCTL, &request, NULL, f, m->root))
			return -1;
	}
	return 0;
}

/* In the instance's namespaces, but with the host's user namespace: what is mounted here is locked for the
 * instance, which gets only a slave copy of the tree. */
static _Noreturn void mounter(struct start *s, const struct net_inside *inside, int report)
{
	struct monitor *m = s->m;
	bool host = m->plan.net == NET_HOST;
	struct priv_kernel_mounts request = {.host_network = host, .cgroup = 1, .uid = m->root_uid, .gid = m->root_gid};
	struct failure f = {0};
	int failed;

	request.tty_gid = plan_map(m->plan.gid, m->plan.gids, TTY_GROUP);
	if (request.tty_gid == UINT32_MAX)
		request.tty_gid = m->root_gid;
	if (setns(m->pidfd, (host ? 0 : CLONE_NEWNET) | CLONE_NEWIPC | CLONE_NEWCGROUP))
		failed = fail(&f, "enter the instance's namespaces", "setns");
	else
		failed = (!host && priv_call(PRIV_INSIDE, inside, sizeof(*inside), NULL, 0, NULL, &f)) ||
			 PRIV_CALL(PRIV_KERNEL_MOUNTS, &request, NULL, &f, m->root) || set_parameters(m, &f);
	if (failed)
		(void)!write(report, &f, sizeof(f));
	_exit(failed ? 1 : 0);
}

int start_kernel_mounts(struct start *s, const struct net_inside *inside, struct failure *f)
{
	struct monitor *m = s->m;
	OWNED int reading = -1;
	int channel[2], status;
	ssize_t said;
	pid_t pid;

	if (pipe2(channel, O_CLOEXEC))
		return fail(f, "mount /proc and /sys", "pipe");
	reading = channel[0];
	if (setns(m->pidfd, CLONE_NEWPID)) {
		close(channel[1]);
		return fail(f, "enter the instance's namespaces", "setns");
	}
	pid = fork();
	if (pid == 0)
		mounter(s, inside, channel[1]);
	close(channel[1]);
	if (setns(s->pidns, CLONE_NEWPID) || pid < 0)
		return fail(f, "mount /proc and /sys", "fork");
	errno = EIO;
	said = read(reading, f, sizeof(*f));
	waitpid(pid, &status, 0);
	if (said == (ssize_t)sizeof(*f))
		return -1;
	return status ? fail(f, "mount /proc and /sys", "the mounter died") : 0;
}

int start_mask(struct monitor *m, struct failure *f)
{
	const struct plan *p = &m->plan;
	struct priv_mask request = {0};

	for (size_t i = 0; !p->nesting && i < p->masks + p->readonlys; i++) {
		const char *path = i < p->masks ? p->mask[i] : p->readonly[i - p->masks];

		request.read_only = i >= p->masks;
		snprintf(request.path, sizeof(request.path), "%.255s", path + (path[0] == '/'));
		if (PRIV_CALL(PRIV_MASK, &request, NULL, f, m->root, m->dev))
			return -1;
	}
	return 0;
}
