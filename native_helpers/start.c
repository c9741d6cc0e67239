/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * From a plan to a running init, in the order of docs/concepts/design.md, "Starting". */
#include "start.h"

#include "priv_net.h"
#include "shape.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#define SLACK_MS 10000

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
	errno = -confine_oom(&m->plan.confinement, m->proc, name);
	if (errno)
		return fail(f, "set `oom_score_adj`", "%d, of init", m->plan.confinement.oom_score_adj);
	return write(s->sync, "m", 1) == 1 ? 0 : fail(f, "talk to init", "write");
}

int start_namespace(struct monitor *m, const char *kind)
{
	char path[40];

	snprintf(path, sizeof(path), "%d/ns/%s", m->init, kind);
	return openat(m->proc, path, O_RDONLY | O_CLOEXEC);
}

static bool to_address(const struct plan_address *from, struct address *to)
{
	to->family = from->family == 4 ? AF_INET : AF_INET6;
	to->prefix = (uint8_t)from->prefix;
	return inet_pton(to->family, from->address, to->bytes) == 1;
}

static int limit_link(const struct plan *p, struct failure *f)
{
	struct net_shape shape = {.ingress = p->ingress,
				  .egress = p->egress,
				  .priority = p->priority,
				  .prioritized = p->priority != UINT32_MAX};

	snprintf(shape.link, sizeof(shape.link), "%.15s", p->host_link);
	return priv_call(PRIV_SHAPE, &shape, sizeof(shape), NULL, 0, NULL, f);
}

static int link_up(struct monitor *m, struct net_inside *inside, struct failure *f)
{
	const struct plan *p = &m->plan;
	struct net_link link = {.mtu = p->mtu};
	OWNED int netns = start_namespace(m, "net");

	snprintf(link.bridge, sizeof(link.bridge), "%.15s", p->bridge);
	snprintf(link.host, sizeof(link.host), "%.15s", p->host_link);
	snprintf(link.inside, sizeof(link.inside), "%.15s", p->inner_link);
	errno = EINVAL;
	if (sscanf(p->mac, "%hhx:%hhx:%hhx:%hhx:%hhx:%hhx", &link.mac[0], &link.mac[1], &link.mac[2], &link.mac[3],
		   &link.mac[4], &link.mac[5]) != 6)
		return fail(f, "read the plan", "`%s` is no MAC address", p->mac);
	inside->link = NET_LINK_INDEX;
	for (size_t i = 0; i < p->addresses; i++)
		if (!to_address(&p->address[i], &inside->address[inside->addresses++]))
			return fail(f, "read the plan", "`%s` is no address", p->address[i].address);
	for (size_t i = 0; i < p->gateways; i++)
		if (!to_address(&p->gateway[i], &inside->gateway[inside->gateways++]))
			return fail(f, "read the plan", "`%s` is no address", p->gateway[i].address);
	if (PRIV_CALL(PRIV_LINK, &link, NULL, f, netns))
		return -1;
	return p->ingress || p->egress || p->priority != UINT32_MAX ? limit_link(p, f) : 0;
}

/* How long hooks may take, or -1: until then nothing of the instance's runs. What an image's own program has stopped or
 * frozen before init runs goes with it. */
static int patience(const struct plan *p)
{
	return p->hooks ? 2 * child_hooks_ms(p) + SLACK_MS : -1;
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
	errno = ETIMEDOUT;
	if (!poll(&(struct pollfd){s->report, POLLIN, 0}, 1, patience(&s->m->plan)))
		return fail(f, "run init", "its hooks do not end");
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
	if (cgroups_create(m, f) || start_leave_host(s, f))
		return -1;
	confine_keyring();
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	if (spawn(s, f) || map_ids(s, f) || start_root(s, f) || start_dev(m, f))
		return -1;
	if (read(s->sync, &made, 1) != 1 || made != 'n') {
		errno = EIO;
		return read(s->report, f, sizeof(*f)) == (ssize_t)sizeof(*f) ? -1
									     : fail(f, "make namespaces", "init died");
	}
	if (m->plan.net == NET_BRIDGE && link_up(m, &inside, f))
		return -1;
	if (start_kernel_mounts(s, &inside, f) || start_mask(m, f))
		return -1;
	failed = PRIV_CALL(PRIV_CONSOLE, &console, pty, f, m->root, m->dev);
	m->console = pty[0];
	slave = pty[1];
	if (failed || start_devices(s, f))
		return -1;
	hotplug_refresh(m);
	if (mount(NULL, "/", NULL, MS_REC | MS_SHARED, NULL))
		return fail(f, "share the tree", "mount");
	clock_gettime(CLOCK_REALTIME, &now);
	m->started_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
	return monitor_host_hooks(m, f) ? -1 : release_init(s, slave, f);
}

void state_write(struct monitor *m, bool frozen)
{
	char text[512];
	int length = snprintf(text, sizeof(text), "monitor\t%d\ninit\t%d\ncgroup\t%s\nstarted\t%llu\nfrozen\t%d\n",
			      getpid(), m->init, m->plan.cgroup, (unsigned long long)m->started_ns, frozen);

	/* Written over before it is cut: within a run the length stays, so no reader finds it empty. */
	if (pwrite(m->lock, text, (size_t)length, 0) != length || ftruncate(m->lock, length))
		return; /* for `list` and people; the lock is what counts */
}

int monitor_start(struct monitor *m, struct failure *f)
{
	struct start s = {.m = m, .own = -1, .pidns = -1, .sync = -1, .report = -1};
	int failed, status;

	start_begin(&s);
	failed = take_lock(m, f) ? -2 : control_listen(m, f) || (m->again && leases_again(m, f)) || start_steps(&s, f);
	start_end(&s);
	confine_unload(&m->plan.confinement);
	if (!failed) {
		state_write(m, false);
		return 0;
	}
	if (failed == -2)
		return -1; /* it is somebody else's: touch nothing */
	if (m->init > 0) {
		(void)stop_signal(m, SIGKILL);
		waitpid(m->init, &status, 0);
	}
	monitor_clean(m);
	return -1;
}

void monitor_clean(struct monitor *m)
{
	cgroups_remove(m);
	links_return(m);
	links_repair(m);
	resctrl_repair(m);
	unlinkat(FD_RUN, "control", 0);
	unlinkat(FD_RUN, "state", 0);
}
