/* SPDX-License-Identifier: GPL-3.0-or-later */
#include "join.h"

#include "common.h"
#include "control.h"

#include <sched.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

/* systemd in the instance has enabled controllers below its cgroup, which then must not hold
 * processes itself: commands go into this child of it. Its files are ours, so that nobody inside can freeze them. */
#define OWN_CGROUP "ctrmgr.exec"
#define TRIES      4

/* Where the instance's root has made that, and may freeze it: one with a name that cannot be guessed, for us alone. */
static struct {
	int parent;
	char name[40];
} made = {.parent = -1};

ssize_t receive_descriptors(int socket, void *message, size_t size, int fds[], size_t max)
{
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(int) * (PROCS_MAX + 3))];
	} control;
	struct iovec part = {message, size};
	struct msghdr m = {
		.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	ssize_t length;
	struct cmsghdr *c;

	do
		length = recvmsg(socket, &m, MSG_CMSG_CLOEXEC);
	while (length < 0 && errno == EINTR);
	c = length > 0 ? CMSG_FIRSTHDR(&m) : NULL;
	if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
		size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		memcpy(fds, CMSG_DATA(c), sizeof(int) * (count < max ? count : max));
	}
	return length;
}

/* `control` may be longer than sun_path: its directory is opened first. */
static int connect_path(const char *control)
{
	const char *slash = strrchr(control, '/');
	char *directory = slash ? strndup(control, slash - control + 1) : strdup(".");
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int dir, length, error, s = -1;

	dir = directory ? open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
	free(directory);
	if (dir < 0)
		return -1;
	length = snprintf(address.sun_path, sizeof(address.sun_path), "/proc/self/fd/%d/%s", dir,
			  slash ? slash + 1 : control);
	if (length >= (int)sizeof(address.sun_path))
		errno = ENAMETOOLONG;
	else
		s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (s >= 0 && connect(s, (struct sockaddr *)&address, sizeof(address)) < 0) {
		error = errno;
		close(s);
		errno = error;
		s = -1;
	}
	close(dir);
	return s;
}

static const char *exchange(int s, char *packet, size_t size, struct instance *out)
{
	struct ctl_request request = {.version = CTL_VERSION, .op = CTL_ENTER};
	struct ctl_reply reply = {0};
	int fds[PROCS_MAX + 3];
	ssize_t length;

	memset(fds, 0xff, sizeof(fds));
	if (send(s, &request, sizeof(request), MSG_NOSIGNAL) < 0)
		return "ask the instance's monitor";
	errno = ECONNRESET;
	length = receive_descriptors(s, packet, size, fds, PROCS_MAX + 3);
	if (length < (ssize_t)sizeof(reply))
		return "hear from the instance's monitor";
	memcpy(&reply, packet, sizeof(reply));
	errno = reply.error;
	if (reply.error)
		return "enter the instance";
	*out = (struct instance){.pidfd = fds[0], .cgroup = fds[1], .plan = fds[2], .again = reply.value ? s : -1};
	if (packet[length - 1] == '\0') {
		out->variables = packet + sizeof(reply);
		out->variables_size = (size_t)length - sizeof(reply);
	}
	while (out->procs_count < PROCS_MAX && fds[3 + out->procs_count] >= 0) {
		out->procs[out->procs_count] = fds[3 + out->procs_count];
		out->procs_count++;
	}
	errno = EPROTO;
	return out->plan < 0 ? "get the instance's descriptors" : NULL;
}

const char *join_ask(const char *control, struct instance *out)
{
	static char packet[sizeof(struct ctl_reply) + ENV_SIZE_MAX];
	char *end;
	long number = strtol(control, &end, 10);
	int error, s = *control && !*end ? (int)number : connect_path(control);
	const char *failed;

	if (s < 0)
		return "the instance is not running";
	failed = exchange(s, packet, sizeof(packet), out);
	error = errno;
	if (failed || out->again < 0)
		close(s);
	errno = error;
	return failed;
}

bool join_renew(struct instance *i)
{
	char packet[sizeof(struct ctl_reply)]; /* what more there is we know */
	struct instance now;

	if (i->again < 0)
		return true;
	if (exchange(i->again, packet, sizeof(packet), &now))
		return false;
	for (size_t n = 0; n < i->procs_count; n++)
		close(i->procs[n]);
	memcpy(i->procs, now.procs, sizeof(i->procs));
	i->procs_count = now.procs_count;
	close(now.pidfd);
	close(now.cgroup);
	close(now.plan);
	close(i->again);
	return true;
}

bool join_frozen(const struct instance *i)
{
	int fd = openat(i->cgroup, "cgroup.freeze", O_RDONLY | O_CLOEXEC);
	char state = '0';

	if (fd < 0)
		return false;
	if (read(fd, &state, 1) < 0)
		state = '0';
	close(fd);
	return state == '1';
}

static pid_t clone_into(int cgroup, int *pidfd)
{
	struct clone_args args = {
		.flags = CLONE_INTO_CGROUP | CLONE_PIDFD,
		.pidfd = (uintptr_t)pidfd,
		.exit_signal = SIGCHLD,
		.cgroup = cgroup,
	};

	return syscall(SYS_clone3, &args, sizeof(args));
}

static int is_ours(int cgroup)
{
	struct stat s;

	return !fstat(cgroup, &s) && s.st_uid == geteuid();
}

static int own_cgroup(int parent, const char *name)
{
	OWNED int own = -1;

	if (mkdirat(parent, name, 0755) < 0 && errno != EEXIST)
		return -1;
	/* NOFOLLOW is for form: cgroupfs has no symlinks */
	own = openat(parent, name, O_PATH | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	if (own >= 0 && !is_ours(own)) {
		close_fd(&own);
		errno = EEXIST;
	}
	return take_fd(&own);
}

static int cgroup_alone(int parent)
{
	uint64_t number;

	join_end();
	if (getrandom(&number, sizeof(number), 0) != sizeof(number))
		return -1;
	made.parent = parent;
	snprintf(made.name, sizeof(made.name), OWN_CGROUP ".%016llx", (unsigned long long)number);
	return own_cgroup(parent, made.name);
}

pid_t join_fork(const struct instance *i, int *pidfd)
{
	pid_t pid;

	if (setns(i->pidfd, CLONE_NEWPID) < 0)
		return -1;
	pid = clone_into(i->cgroup, pidfd);
	if (pid >= 0 || (errno != EBUSY && errno != EOPNOTSUPP))
		return pid;
	/* an empty one can be removed by the instance's root between any two steps */
	for (int tries = 0; pid < 0 && tries < TRIES; tries++) {
		OWNED int own = tries ? cgroup_alone(i->cgroup) : own_cgroup(i->cgroup, OWN_CGROUP);

		if (own >= 0)
			pid = clone_into(own, pidfd);
		if (pid < 0 && errno != EEXIST && errno != ENOENT && errno != ENODEV)
			break;
	}
	return pid;
}

void join_end(void)
{
	if (made.parent >= 0)
		unlinkat(made.parent, made.name, AT_REMOVEDIR);
	made.parent = -1;
}
