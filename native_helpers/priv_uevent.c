/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * A uevent in an instance's network namespace. The kernel passes on what it is sent there by whoever has rights over
 * the namespace's owner, with a number of its own, as if it said so itself (4.18 and later). */
#include "netlink.h"
#include "priv.h"

#include <linux/netlink.h>
#include <linux/nsfs.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#define STEP "tell of the device"

/* Of the same user namespace are all that the host's own programs listen in. */
static bool is_instances(int netns, int own)
{
	struct stat theirs, ours;
	OWNED int their_owner = -1;
	OWNED int our_owner = -1;

	errno = EINVAL;
	if (ioctl(netns, NS_GET_NSTYPE) != CLONE_NEWNET || ioctl(own, NS_GET_NSTYPE) != CLONE_NEWNET)
		return false;
	their_owner = ioctl(netns, NS_GET_USERNS);
	our_owner = ioctl(own, NS_GET_USERNS);
	if (their_owner < 0 || our_owner < 0 || fstat(their_owner, &theirs) || fstat(our_owner, &ours))
		return false;
	errno = EPERM;
	return theirs.st_ino != ours.st_ino;
}

static int open_in(int netns, int own)
{
	int fd;

	if (setns(netns, CLONE_NEWNET))
		return -1;
	fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_KOBJECT_UEVENT);
	if (setns(own, CLONE_NEWNET))
		abort(); /* nothing of the host's may be done in an instance's network */
	return fd;
}

/* libudev believes nobody but root, and who that is inside the sender has to say. */
static int say(int fd, const struct priv_uevent *u)
{
	struct nlmsghdr header = {.nlmsg_len = NLMSG_LENGTH(u->size),
				  .nlmsg_type = NLMSG_MIN_TYPE,
				  .nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK};
	struct ucred sender = {.pid = getpid(), .uid = u->uid, .gid = u->gid};
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(struct ucred))];
	} control = {.header = {.cmsg_len = CMSG_LEN(sizeof(sender)),
				.cmsg_level = SOL_SOCKET,
				.cmsg_type = SCM_CREDENTIALS}};
	struct iovec part[2] = {{&header, sizeof(header)}, {(void *)(uintptr_t)u->text, u->size}};
	struct msghdr message = {
		.msg_iov = part, .msg_iovlen = 2, .msg_control = &control, .msg_controllen = sizeof(control)};
	struct {
		struct nlmsghdr header;
		struct nlmsgerr error;
	} answer = {0};

	memcpy(CMSG_DATA(&control.header), &sender, sizeof(sender));
	if (sendmsg(fd, &message, 0) < 0 || netlink_hear(fd, &answer, sizeof(answer), MSG_DONTWAIT) < 0)
		return -1;
	errno = -answer.error.error;
	return errno ? -1 : 0;
}

int priv_uevent(const void *request, const int in[], int count, int out[], struct failure *f)
{
	const struct priv_uevent *u = request;
	OWNED int fd = -1;

	(void)count, (void)out;
	errno = EINVAL;
	if (!u->size || u->size > sizeof(u->text) || u->text[u->size - 1])
		return fail(f, STEP, "no event");
	if (!priv_instance_ids(u->uid, u->gid))
		return fail(f, STEP, "%u:%u", u->uid, u->gid);
	errno = EBADF;
	if (in[0] < 0 || in[1] < 0)
		return fail(f, STEP, "a namespace");
	if (!is_instances(in[0], in[1]))
		return fail(f, STEP, "not the network of an instance");
	fd = open_in(in[0], in[1]);
	return fd < 0 || say(fd, u) ? fail(f, STEP, "the instance's network") : 0;
}
