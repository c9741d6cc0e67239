/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * The control socket. A client sends one request and gets one reply; none can make the monitor wait. */
#include "monitor.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

struct answer {
	struct ctl_reply reply;
	size_t size;
	int fds[HIERARCHIES + 5];
	size_t fd_count;
	char data[sizeof(struct ctl_device) * PARTS]; /* last: what is not filled takes no memory */
};

int control_listen(struct monitor *m, struct failure *f)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	mode_t mask = umask(0177);
	int failed;

	snprintf(address.sun_path, sizeof(address.sun_path), "/proc/self/fd/%d/control", FD_RUN);
	m->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	unlinkat(FD_RUN, "control", 0); /* we hold the lock: it is a dead monitor's */
	failed = m->listener < 0 || bind(m->listener, (struct sockaddr *)&address, sizeof(address)) ||
		 listen(m->listener, 64);
	umask(mask);
	return failed ? fail(f, "make the control socket", "in the run directory") : 0;
}

static int number_of(const struct monitor *m, const struct client *c)
{
	return (int)(c - m->client) + 1;
}

static void hang_up(struct monitor *m, struct client *c)
{
	part_abandon(m, number_of(m, c));
	close_fd(&c->fd);
	c->waits = false;
}

void control_accept(struct monitor *m)
{
	int fd = accept4(m->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	for (size_t i = 0; fd >= 0 && i < CLIENTS; i++)
		if (m->client[i].fd < 0) {
			m->client[i] = (struct client){.fd = take_fd(&fd)};
			return;
		}
	close_fd(&fd); /* too many at once; they see the end of the connection and may try again */
}

static void send_answer(struct client *c, struct answer *a)
{
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(a->fds))];
	} control = {0};
	struct iovec part[2] = {{&a->reply, sizeof(a->reply)}, {a->data, a->size}};
	struct msghdr message = {.msg_iov = part, .msg_iovlen = 2};
	size_t bytes = a->fd_count * sizeof(int);

	if (bytes) {
		control.header = (struct cmsghdr){
			.cmsg_len = CMSG_LEN(bytes), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
		memcpy(CMSG_DATA(&control.header), a->fds, bytes);
		message.msg_control = &control;
		message.msg_controllen = CMSG_SPACE(bytes);
	}
	(void)!sendmsg(c->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void answer_failure(struct answer *a, const struct failure *f)
{
	a->reply.error = f->error ? f->error : EIO;
	memcpy(a->reply.step, f->step, sizeof(a->reply.step));
	memcpy(a->reply.detail, f->detail, sizeof(a->reply.detail));
}

static void status(struct monitor *m, struct answer *a)
{
	struct ctl_status s = {.monitor_pid = getpid(),
			       .init_pid = m->init,
			       .exit_status = m->exit_status,
			       .started_ns = m->started_ns,
			       .frozen = cgroups_frozen(m),
			       .open_fds = m->fence_state};
	memcpy(s.open_fds_reason, m->fence_reason, sizeof(m->fence_reason));
	memcpy(a->data, &s, sizeof(s));
	a->size = sizeof(s);
	a->reply.count = 1;
}

static void devices(struct monitor *m, struct answer *a)
{
	for (size_t i = 0; i < m->used; i++)
		if (m->part[i].state >= PART_HELD) {
			struct ctl_device d = m->part[i].device;

			if (m->part[i].state == PART_SUSPENDED)
				d.access |= CTL_SUSPENDED;
			memcpy(a->data + a->size, &d, sizeof(d));
			a->size += sizeof(d);
			a->reply.count++;
		}
}

static int take(struct monitor *m, const struct ctl_request *r, struct answer *a, struct failure *f)
{
	struct ctl_holder *holders = (struct ctl_holder *)a->data;
	int revoked, failed = device_take(m, r->device.name, r->op == CTL_DETACH, r->arg0, holders, &a->reply.count,
					  &revoked, f);

	a->size = sizeof(*holders) * (size_t)(a->reply.count < CTL_HOLDERS_MAX ? a->reply.count : CTL_HOLDERS_MAX);
	a->reply.value = a->reply.count; /* there may be more than fit */
	a->reply.count = (int)(a->size / sizeof(*holders));
	if (revoked)
		snprintf(a->reply.detail, sizeof(a->reply.detail), "%d", revoked);
	return failed;
}

static int hooks(struct monitor *m, const char *name, struct answer *a, struct failure *f)
{
	for (struct part *p = NULL; (p = part_next(m, name, p));) {
		uint32_t size = (uint32_t)p->size;

		if (p->device.type != CTL_HOOK)
			continue;
		errno = EMSGSIZE;
		if (a->size + sizeof(size) + size > sizeof(a->data))
			return fail(f, "name the hooks", "there are too many");
		memcpy(a->data + a->size, &size, sizeof(size));
		memcpy(a->data + a->size + sizeof(size), p->text, size);
		a->size += sizeof(size) + size;
		a->reply.count++;
	}
	return 0;
}

static void changed(struct answer *a, const char *text)
{
	size_t size = strlen(text) + 1;

	if (!*text || a->size + size > sizeof(a->data))
		return;
	memcpy(a->data + a->size, text, size);
	a->size += size;
}

static void variables(struct monitor *m, struct answer *a)
{
	for (size_t i = 0; i < m->used; i++) {
		const struct part *p = &m->part[i];

		if (p->state == PART_HELD && (p->device.type == CTL_ENV || p->device.type == CTL_GROUP) &&
		    a->size + p->size <= sizeof(a->data)) {
			memcpy(a->data + a->size, p->text, p->size);
			a->size += p->size;
			a->reply.count++;
		}
	}
	for (size_t i = 0; i < RLIM_NLIMITS; i++)
		changed(a, m->rlimit[i]);
	changed(a, m->oom);
}

/* The v1 cgroups' `cgroup.procs` and a class's `tasks`, opened on each asking: they are seldom needed. */
static void enter(struct monitor *m, struct answer *a)
{
	a->fds[a->fd_count++] = m->pidfd;
	a->fds[a->fd_count++] = m->hierarchy[0].dir;
	a->fds[a->fd_count++] = FD_PLAN;
	a->reply.value = m->has_classes;
	variables(m, a);
	for (size_t i = 0; i < m->hierarchies; i++) {
		int fd = strcmp(m->hierarchy[i].name, "unified")
				 ? openat(m->hierarchy[i].dir, "cgroup.procs", O_WRONLY | O_CLOEXEC)
				 : -1;

		if (fd >= 0)
			a->fds[a->fd_count++] = fd;
	}
	a->fd_count += resctrl_tasks(m, a->fds + a->fd_count);
}

static int limit(struct monitor *m, const struct ctl_request *r, int mount, struct failure *f)
{
	char hierarchy[CTL_NAME_MAX], file[PRIV_NAME], value[PRIV_PATH];

	snprintf(hierarchy, sizeof(hierarchy), "%.63s", r->device.name);
	snprintf(file, sizeof(file), "%.63s", r->device.path);
	snprintf(value, sizeof(value), "%.255s", r->value);
	return cgroups_limit(m, hierarchy, file, value, mount, f);
}

/* Returns whether the client is answered now, and not when the instance has ended. */
static bool carry_out(struct monitor *m, struct client *c, const struct ctl_request *r, const char *text, size_t size,
		      int fd, struct answer *a)
{
	struct failure f = {0};
	int failed = 0;

	switch ((enum ctl_op)r->op) {
	case CTL_STATUS: status(m, a); break;
	case CTL_ATTACH: failed = device_attach(m, &r->device, number_of(m, c), fd, &f); break;
	case CTL_PART: failed = device_part(m, &r->device, number_of(m, c), fd, text, size, &f); break;
	case CTL_COMMIT:
		failed = part_commit(m, number_of(m, c), &f);
		hotplug_refresh(m);
		break;
	case CTL_DETACH:
	case CTL_SUSPEND:
		failed = take(m, r, a, &f);
		hotplug_refresh(m);
		break;
	case CTL_RESUME:
		failed = device_resume(m, r->device.name, &f);
		hotplug_refresh(m);
		break;
	case CTL_TEXT: failed = hooks(m, r->device.name, a, &f); break;
	case CTL_DEVICES: devices(m, a); break;
	case CTL_TRACE: c->traces = true; break;
	case CTL_STOP:
		stop_begin(m, r->arg0);
		c->waits = true;
		return false;
	case CTL_KILL:
		m->stopping = true;
		cgroups_kill(m);
		c->waits = true;
		return false;
	case CTL_FREEZE:
	case CTL_THAW: failed = cgroups_freeze(m, r->op == CTL_FREEZE, &f); break;
	case CTL_ENTER: enter(m, a); break;
	case CTL_SIGNAL:
		if (stop_signal(m, r->arg0))
			failed = fail(&f, "signal init", "%d", r->arg0);
		break;
	case CTL_WAIT: c->waits = true; return false;
	case CTL_LIMIT: failed = limit(m, r, fd, &f); break;
	case CTL_RLIMIT:
	case CTL_SYSCTL:
	case CTL_OOM:
		failed = r->op == CTL_OOM      ? oom_set(m, r->value, &f)
			 : r->op == CTL_RLIMIT ? rlimit_set(m, r->device.path, r->value, &f)
					       : parameter_set(m, r->device.path, r->value, &f);
		memcpy(a->reply.detail, f.detail, sizeof(a->reply.detail));
		break;
	case CTL_MEND_FILTER: failed = mend_filter(m, &f); break;
	case CTL_MEND_NODE: failed = mend_node(m, r->device.name, r->device.path, fd, &f); break;
	default: errno = ENOSYS; failed = fail(&f, "read the request", "this monitor has no operation %u", r->op);
	}
	if (failed)
		answer_failure(a, &f);
	return true;
}

/* Of a client that sends more than one we want none. */
static int descriptor_of(struct msghdr *message)
{
	struct cmsghdr *header = CMSG_FIRSTHDR(message);
	OWNED int fd = -1;

	if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
	    header->cmsg_len == CMSG_LEN(sizeof(int)))
		memcpy(&fd, CMSG_DATA(header), sizeof(fd));
	return message->msg_flags & MSG_CTRUNC ? -1 : take_fd(&fd);
}

void control_serve(struct monitor *m, struct client *c)
{
	static _Alignas(PAGE) struct answer a; /* too large for the stack, and touched only when somebody asks */
	struct ctl_request r = {0};
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(int))];
	} control;
	static char text[CTL_TEXT_MAX];
	struct iovec part[2] = {{&r, sizeof(r)}, {text, sizeof(text)}};
	/* not the size of the space, in whose padding the kernel would find room for a second one */
	struct msghdr message = {
		.msg_iov = part, .msg_iovlen = 2, .msg_control = &control, .msg_controllen = CMSG_LEN(sizeof(int))};
	ssize_t length = recvmsg(c->fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	OWNED int fd = length >= 0 ? descriptor_of(&message) : -1;
	bool now = true;
	size_t size;

	if (length < 0 && errno == EAGAIN)
		return;
	a.reply = (struct ctl_reply){.version = CTL_VERSION};
	a.size = a.fd_count = 0;
	if (length < (ssize_t)sizeof(r) || r.version != CTL_VERSION || c->waits) {
		hang_up(m, c);
		return;
	}
	/* what a newer client says beyond what we know is not for us */
	size = message.msg_flags & MSG_TRUNC ? 0 : (size_t)length - sizeof(r);
	r.device.name[CTL_NAME_MAX - 1] = r.device.path[CTL_PATH_MAX - 1] = r.value[CTL_PATH_MAX - 1] = '\0';
	priv_trace = c->traces ? c->fd : -1;
	now = carry_out(m, c, &r, text, size, fd, &a);
	if (c->traces)
		parts_tell(m);
	priv_trace = -1;
	if (now)
		send_answer(c, &a);
	parts_tell(m);
	for (size_t i = 3; i < a.fd_count; i++)
		close(a.fds[i]);
	madvise(&a, sizeof(a) / PAGE * PAGE, MADV_DONTNEED); /* begun anew each time */
}

void control_trace_end(struct monitor *m)
{
	for (size_t i = 0; i < CLIENTS; i++)
		if (m->client[i].fd >= 0 && m->client[i].waits && m->client[i].traces)
			priv_trace = m->client[i].fd;
}

void control_end(struct monitor *m)
{
	static struct answer a;

	a.reply = (struct ctl_reply){.version = CTL_VERSION, .value = m->exit_status};
	for (size_t i = 0; i < CLIENTS; i++)
		if (m->client[i].fd >= 0) {
			if (m->client[i].waits)
				send_answer(&m->client[i], &a);
			hang_up(m, &m->client[i]);
		}
}
