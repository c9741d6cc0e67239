/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * From a plan to a running init, in the order of docs/concepts/design.md, "Starting". */
#include "monitor.h"

#include "priv_net.h"

#include <arpa/inet.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <time.h>

#define PLAN_SIZE_MAX (1 << 20)
#define TTY_GROUP     5 /* in every distribution; devpts hands terminals to it */

/* What only the start needs. */
struct start {
	struct monitor *m;
	int layer[PLAN_LAYERS], device[PLAN_DEVICES];
	int own, pidns, sync, report; /* own: the instance's directory, in the monitor's mount namespace */
};

static int read_plan(struct monitor *m, struct failure *f)
{
	struct stat s;

	errno = EFBIG;
	if (fstat(FD_PLAN, &s) || s.st_size > PLAN_SIZE_MAX)
		return fail(f, "read the plan", "fstat");
	m->text_size = (size_t)s.st_size + 1;
	m->text = mmap(NULL, m->text_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (m->text == MAP_FAILED || pread(FD_PLAN, m->text, (size_t)s.st_size, 0) != s.st_size)
		return fail(f, "read the plan", "pread");
	return plan_parse(&m->plan, m->text, f);
}

/* Our own programs lie together, wherever that is. */
static int sibling(const char *name)
{
	char path[4096];
	ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 64);
	char *slash;

	if (length < 0)
		return -1;
	path[length] = '\0';
	slash = strrchr(path, '/');
	strcpy(slash + 1, name);
	return open(path, O_PATH | O_CLOEXEC);
}

static int take_lock(struct monitor *m, struct failure *f)
{
	struct stat s;

	if (m->lock < 0)
		m->lock = openat(FD_RUN, "state", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (m->lock < 0)
		return fail(f, "open the run directory", "`state`");
	if (flock(m->lock, LOCK_EX | LOCK_NB)) {
		errno = EBUSY;
		return fail(f, "take the instance's lock", "it is running already");
	}
	errno = ESTALE;
	if (fstat(m->lock, &s) || !s.st_nlink)
		return fail(f, "take the instance's lock", "another command has cleaned up meanwhile");
	return 0;
}

int monitor_open(struct monitor *m, struct failure *f)
{
	int error;

	m->proc = priv_proc = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
	m->exe = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	m->host_mounts = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
	if (m->proc < 0 || m->exe < 0 || m->host_mounts < 0)
		return fail(f, "look at myself", "`/proc` is not mounted");
	if (read_plan(m, f))
		return -1;
	m->root_uid = plan_map(m->plan.uid, m->plan.uids, 0);
	m->root_gid = plan_map(m->plan.gid, m->plan.gids, 0);
	m->dead_uid = plan_unmapped(m->plan.uid, m->plan.uids);
	m->dead_gid = plan_unmapped(m->plan.gid, m->plan.gids);
	errno = EINVAL;
	if (m->root_uid == UINT32_MAX || m->root_gid == UINT32_MAX)
		return fail(f, "map ids", "the plan gives the instance no root");
	if (!strcmp(m->plan.init, "builtin") && (m->init_program = sibling("ctrmgr-init")) < 0)
		return fail(f, "find our init", "`ctrmgr-init` is not beside `ctrmgr-monitor`");
	error = confine_load(&m->plan.confinement);
	errno = -error;
	if (error)
		return fail(f, "read the seccomp filter", "`%s`", m->plan.confinement.seccomp);
	return cgroups_find(m, f);
}

/* The instance's directory came as a descriptor of the starter's mount namespace, in which nothing can be cloned
 * from ours: it is opened again by its path, and must be the same. */
static int open_again(int fd)
{
	char link[32], path[4096];
	struct stat given, found;
	ssize_t length;
	int again;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	length = readlink(link, path, sizeof(path) - 1);
	if (length < 0)
		return -1;
	path[length] = '\0';
	again = open(path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	errno = ESTALE;
	if (again >= 0 &&
	    (fstat(fd, &given) || fstat(again, &found) || given.st_ino != found.st_ino || given.st_dev != found.st_dev))
		close_fd(&again);
	return again;
}

/* What was a device when it was configured may be anything now. */
static int check_device(const struct plan_device *d, int fd, struct failure *f)
{
	struct stat s;
	const char *what;

	if (fstat(fd, &s))
		return fail(f, "open the device", "device `%s`: `%s`", d->name, d->source);
	if ((d->block && S_ISBLK(s.st_mode)) || (!d->block && S_ISCHR(s.st_mode)))
		return 0;
	what = S_ISBLK(s.st_mode)   ? "a block device"
	       : S_ISCHR(s.st_mode) ? "a character device"
	       : S_ISDIR(s.st_mode) ? "a directory"
	       : S_ISREG(s.st_mode) ? "a regular file"
				    : "no device node";
	errno = ENODEV;
	return fail(f, "check the device", "device `%s`: `%s` is %s", d->name, d->source, what);
}

static int open_devices(struct start *s, struct failure *f)
{
	const struct plan *p = &s->m->plan;

	for (size_t i = 0; i < p->devices; i++) {
		s->device[i] = open(p->device[i].source, O_PATH | O_CLOEXEC);
		if (s->device[i] < 0 && p->device[i].required)
			return fail(f, "open the device", "device `%s`: `%s`", p->device[i].name, p->device[i].source);
		if (s->device[i] >= 0 && check_device(&p->device[i], s->device[i], f))
			return -1;
	}
	return 0;
}

/* A mount namespace of our own, and everything that the host has to give while we still see it. */
static int leave_host(struct start *s, struct failure *f)
{
	struct plan *p = &s->m->plan;

	s->pidns = open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC);
	if (unshare(CLONE_NEWNS))
		return fail(f, "make the monitor's mount namespace", "unshare: mount namespaces");
	if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
		return fail(f, "make the monitor's mount namespace", "mount");
	s->own = open_again(FD_INSTANCE);
	if (s->own < 0)
		return fail(f, "open the instance's directory", "`%s`", p->name);
	for (size_t i = 0; i < p->layers; i++)
		if ((s->layer[i] = open(p->layer[i], O_PATH | O_DIRECTORY | O_CLOEXEC)) < 0)
			return fail(f, "open a layer", "`%s`", p->layer[i]);
	return open_devices(s, f);
}

static int spawn(struct start *s, struct failure *f)
{
	struct monitor *m = s->m;
	bool unified = !strcmp(m->hierarchy[0].name, "unified");
	struct clone_args a = {.flags = CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_PIDFD,
			       .pidfd = (uint64_t)(uintptr_t)&m->pidfd,
			       .exit_signal = SIGCHLD};
	int sync[2], report[2];
	struct child c;
	long pid;

	if (unified) {
		a.flags |= CLONE_INTO_CGROUP;
		a.cgroup = (uint64_t)m->hierarchy[0].dir;
	}
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sync) || pipe2(report, O_CLOEXEC))
		return fail(f, "talk to init", "socketpair");
	pid = syscall(SYS_clone3, &a, sizeof(a));
	if (pid == 0) {
		close(sync[0]);
		close(report[0]);
		c = (struct child){
			.m = m, .from_parent = sync[1], .to_parent = sync[1], .report = report[1], .slave = -1};
		child_main(&c);
	}
	close(sync[1]);
	close(report[1]);
	s->sync = sync[0];
	s->report = report[0];
	m->init = (pid_t)pid;
	return pid < 0 ? fail(f, "make the instance's namespaces", "clone3") : cgroups_join(m, m->init, f);
}

static int map_ids(struct start *s, struct failure *f)
{
	struct monitor *m = s->m;
	struct priv_idmap request = {.uids = (uint32_t)m->plan.uids, .gids = (uint32_t)m->plan.gids};
	char name[12];
	OWNED int proc = -1;

	memcpy(request.uid, m->plan.uid, sizeof(request.uid));
	memcpy(request.gid, m->plan.gid, sizeof(request.gid));
	snprintf(name, sizeof(name), "%d", m->init);
	proc = openat(m->proc, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (proc < 0)
		return fail(f, "map ids", "init is gone");
	if (PRIV_CALL(PRIV_IDMAP, &request, NULL, f, proc))
		return -1;
	/* the hard limits of init may be above ours: raised from outside, where the right to do so is */
	errno = -confine_limits(&m->plan.confinement, m->init);
	if (errno)
		return fail(f, "set resource limits", "of init");
	return write(s->sync, "m", 1) == 1 ? 0 : fail(f, "talk to init", "write");
}

static int namespace_of(struct monitor *m, const char *kind)
{
	char path[40];

	snprintf(path, sizeof(path), "%d/ns/%s", m->init, kind);
	return openat(m->proc, path, O_RDONLY | O_CLOEXEC);
}

static int build_root(struct start *s, struct failure *f)
{
	struct monitor *m = s->m;
	struct priv_overlay overlay = {m->root_uid, m->root_gid};
	struct priv_layer lower = {.read_only = 1}, upper = {0};
	OWNED int userns = m->plan.shifted ? -1 : namespace_of(m, "user"), place = -1, mount = -1;
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

static int mount_dev(struct monitor *m, struct failure *f)
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

static bool to_address(const struct plan_address *from, struct address *to)
{
	to->family = from->family == 4 ? AF_INET : AF_INET6;
	to->prefix = (uint8_t)from->prefix;
	return inet_pton(to->family, from->address, to->bytes) == 1;
}

static int link_up(struct monitor *m, struct net_inside *inside, struct failure *f)
{
	const struct plan *p = &m->plan;
	struct net_link link = {.mtu = p->mtu};
	OWNED int netns = namespace_of(m, "net");

	snprintf(link.bridge, sizeof(link.bridge), "%.15s", p->bridge);
	snprintf(link.host, sizeof(link.host), "%.15s", p->host_link);
	snprintf(link.inside, sizeof(link.inside), "%.15s", p->inner_link);
	errno = EINVAL;
	if (sscanf(p->mac, "%hhx:%hhx:%hhx:%hhx:%hhx:%hhx", &link.mac[0], &link.mac[1], &link.mac[2], &link.mac[3],
		   &link.mac[4], &link.mac[5]) != 6)
		return fail(f, "read the plan", "`%s` is no MAC address", p->mac);
	inside->link = NET_LINK_INDEX;
	for (size_t i = 0; i < p->addresses && i < NET_ADDRESSES_MAX; i++)
		if (!to_address(&p->address[i], &inside->address[inside->addresses++]))
			return fail(f, "read the plan", "`%s` is no address", p->address[i].address);
	for (size_t i = 0; i < p->gateways && i < NET_GATEWAYS_MAX; i++)
		if (!to_address(&p->gateway[i], &inside->gateway[inside->gateways++]))
			return fail(f, "read the plan", "`%s` is no address", p->gateway[i].address);
	return PRIV_CALL(PRIV_LINK, &link, NULL, f, netns);
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
			 PRIV_CALL(PRIV_KERNEL_MOUNTS, &request, NULL, &f, m->root);
	if (failed)
		(void)!write(report, &f, sizeof(f));
	_exit(failed ? 1 : 0);
}

static int kernel_mounts(struct start *s, const struct net_inside *inside, struct failure *f)
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

static int mask_paths(struct monitor *m, struct failure *f)
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

static int plan_devices(struct start *s, struct failure *f)
{
	const struct plan *p = &s->m->plan;

	for (size_t i = 0; i < p->devices; i++) {
		const struct plan_device *d = &p->device[i];
		struct ctl_device c = {.type = d->block ? CTL_BLOCK : CTL_CHAR, .mode = d->mode, .access = d->access};
		struct stat host;

		if (s->device[i] < 0)
			continue;
		if (fstat(s->device[i], &host))
			return fail(f, "open the device", "`%s`", d->source);
		c.major = major(host.st_rdev);
		c.minor = minor(host.st_rdev);
		snprintf(c.name, sizeof(c.name), "%.63s", d->name);
		snprintf(c.path, sizeof(c.path), "%.255s", d->path);
		snprintf(c.user, sizeof(c.user), "%.63s", d->user);
		snprintf(c.group, sizeof(c.group), "%.63s", d->group);
		if (device_attach(s->m, &c, s->device[i], f)) {
			char said[sizeof(f->detail)];

			memcpy(said, f->detail, sizeof(said));
			snprintf(f->detail, sizeof(f->detail), "device `%.63s`: %.180s", d->name, said);
			return -1;
		}
	}
	return 0;
}

/* The last byte, with the console. */
static int release_init(struct start *s, int slave, struct failure *f)
{
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(int))];
	} control = {0};
	struct iovec part = {"g", 1};
	struct msghdr message = {
		.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	ssize_t said;

	control.header =
		(struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
	memcpy(CMSG_DATA(&control.header), &slave, sizeof(slave));
	if (sendmsg(s->sync, &message, MSG_NOSIGNAL) != 1)
		return fail(f, "talk to init", "sendmsg");
	said = read(s->report, f, sizeof(*f));
	if (said == (ssize_t)sizeof(*f))
		return -1;
	errno = EIO;
	return said ? fail(f, "run init", "it died before it ran") : 0;
}

static int start_steps(struct start *s, struct failure *f)
{
	struct monitor *m = s->m;
	struct priv_console console = {m->root_uid, m->root_gid};
	struct net_inside inside = {0};
	OWNED int slave = -1;
	int pty[2] = {-1, -1}, failed;
	struct timespec now;
	char made;

	cgroups_remove(m); /* what a killed monitor left; the lock says that it is nobody's */
	if (cgroups_create(m, f) || leave_host(s, f))
		return -1;
	confine_keyring();
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	if (spawn(s, f) || map_ids(s, f) || build_root(s, f) || mount_dev(m, f))
		return -1;
	if (read(s->sync, &made, 1) != 1 || made != 'n') {
		errno = EIO;
		return read(s->report, f, sizeof(*f)) == (ssize_t)sizeof(*f) ? -1
									     : fail(f, "make namespaces", "init died");
	}
	if (m->plan.net == NET_BRIDGE && link_up(m, &inside, f))
		return -1;
	if (kernel_mounts(s, &inside, f) || mask_paths(m, f))
		return -1;
	failed = PRIV_CALL(PRIV_CONSOLE, &console, pty, f, m->root, m->dev);
	m->console = pty[0];
	slave = pty[1];
	if (failed || plan_devices(s, f))
		return -1;
	if (mount(NULL, "/", NULL, MS_REC | MS_SHARED, NULL))
		return fail(f, "share the tree", "mount");
	clock_gettime(CLOCK_REALTIME, &now);
	m->started_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
	return release_init(s, slave, f);
}

void state_write(struct monitor *m, bool frozen)
{
	char text[512];
	int length = snprintf(text, sizeof(text), "monitor\t%d\ninit\t%d\ncgroup\t%s\nstarted\t%llu\nfrozen\t%d\n",
			      getpid(), m->init, m->plan.cgroup, (unsigned long long)m->started_ns, frozen);

	if (ftruncate(m->lock, 0) || pwrite(m->lock, text, (size_t)length, 0) != length)
		return; /* for `list` and people; the lock is what counts */
}

int monitor_start(struct monitor *m, struct failure *f)
{
	struct start s = {.m = m, .own = -1, .pidns = -1, .sync = -1, .report = -1};
	int failed, status;

	for (size_t i = 0; i < PLAN_LAYERS; i++)
		s.layer[i] = -1;
	for (size_t i = 0; i < PLAN_DEVICES; i++)
		s.device[i] = -1;
	failed = take_lock(m, f) ? -2 : control_listen(m, f) || start_steps(&s, f);
	for (size_t i = 0; i < PLAN_LAYERS; i++)
		close_fd(&s.layer[i]);
	for (size_t i = 0; i < PLAN_DEVICES; i++)
		close_fd(&s.device[i]);
	close_fd(&s.own);
	close_fd(&s.pidns);
	close_fd(&s.sync);
	close_fd(&s.report);
	confine_unload(&m->plan.confinement);
	if (!failed) {
		state_write(m, false);
		return 0;
	}
	if (failed == -2)
		return -1; /* it is somebody else's: touch nothing */
	if (m->init > 0) {
		(void)monitor_signal(m, SIGKILL);
		waitpid(m->init, &status, 0);
	}
	monitor_clean(m);
	return -1;
}

void monitor_clean(struct monitor *m)
{
	cgroups_remove(m);
	unlinkat(FD_RUN, "control", 0);
	unlinkat(FD_RUN, "state", 0);
}
