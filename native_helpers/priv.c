/* SPDX-License-Identifier: GPL-3.0-or-later */
#include "priv.h"

#include "priv_net.h"
#include "shape.h"

#include <linux/sockios.h>
#include <stddef.h>
#include <sys/fsuid.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/vfs.h>

#define TRACE_QUEUE (64 * 1024)
#define OP(number, function, request, min, max, out, why) \
	[number] = {#number, sizeof(struct request), min, max, out, function, why, 0}
#define OP_ON(number, function, request, text, min, max, out, why) \
	[number] = {#number, sizeof(struct request), min, max, out, function, why, 1 + offsetof(struct request, text)}

const struct priv_operation priv_operations[] = {
	OP_ON(PRIV_CGROUP_CREATE, priv_cgroup_create, priv_cgroup_create, name, 1, 1, 1,
	      "makes one directory, of a name without slashes, in a cgroup directory that the caller holds; "
	      "nothing is limited or moved by it"),
	OP_ON(PRIV_CGROUP_WRITE, priv_cgroup_write, priv_cgroup_write, file, 1, 1, 0,
	      "writes only the controllers' own files, by a list, in a directory checked to be of cgroupfs"),
	OP_ON(PRIV_CGROUP_REMOVE, priv_cgroup_remove, priv_cgroup_remove, name, 1, 1, 0,
	      "kills and removes only what is below a cgroup directory that the caller holds"),
	OP(PRIV_IDMAP, priv_idmap, priv_idmap, 1, 1, 0,
	   "maps host ids only into a user namespace whose maps are still empty; host root is refused; "
	   "the range's owner is the server's policy"),
	OP(PRIV_LAYER, priv_layer, priv_layer, 1, 2, 1,
	   "clones a directory that the caller has open; without set-id or devices taking effect on the host, "
	   "since it is only ever mounted in the instance"),
	OP(PRIV_OVERLAY, priv_overlay, priv_overlay, 3, PRIV_FDS, 1,
	   "stacks mounts that the caller holds, with the instance's ids as filesystem ids"),
	OP(PRIV_DEV, priv_dev, priv_dev, 0, 0, 1,
	   "an empty tmpfs with the six harmless nodes that every user may open on the host"),
	OP(PRIV_NODE, priv_node, priv_node, 2, 2, 1,
	   "copies type and number from the descriptor of a host node, never from the request; only into a tmpfs, "
	   "below it, through no symlink; who may ask for which node is the server's policy"),
	OP_ON(PRIV_PLACE, priv_place, priv_place, path, 1, 1, 1,
	      "renames within a tmpfs that the caller holds, through no symlink and over nothing"),
	OP_ON(PRIV_REVOKE, priv_revoke, priv_revoke, path, 2, 3, 0,
	      "takes rights away from an inode of a tmpfs that the caller holds"),
	OP(PRIV_GRANT, priv_grant, priv_grant, 2, 2, 0,
	   "gives back what PRIV_REVOKE took, to a node of a /dev that the caller holds; which ids is the server's "
	   "policy"),
	OP(PRIV_CLONE, priv_clone, priv_clone, 1, 3, 1,
	   "clones a mount of a file or directory that the caller has open, without set-id and devices; it names "
	   "nothing "
	   "in the namespace that it visits for that"),
	OP_ON(PRIV_FILESYSTEM, priv_filesystem, priv_filesystem, type, 0, 1, 1,
	      "mounts, of a list of types, an empty tmpfs or the block device that the caller holds, which nobody has "
	      "mounted; "
	      "without set-id and devices; whose disk is the server's policy"),
	OP(PRIV_SHIFT, priv_shift, priv_shift, 2, 2, 0,
	   "maps the ids of a mount that the caller holds and that is mounted nowhere; whose files is the server's "
	   "policy"),
	OP_ON(PRIV_BIND, priv_bind, priv_bind, path, 2, 2, 0,
	      "mounts what the caller holds below a root that it holds; a symlink of the instance leads nowhere but "
	      "there, and "
	      "to no other mount; what is made belongs to the instance's root"),
	OP_ON(PRIV_UNBIND, priv_unbind, priv_unbind, path, 2, 2, 0,
	      "unmounts the mount that the caller holds; removes only empty files and directories that PRIV_BIND has "
	      "made"),
	OP(PRIV_PROGRAM, priv_program, priv_program, 1, 2, 1,
	   "a device filter can only forbid: programs on the path of a cgroup are ANDed"),
	OP(PRIV_ALLOW, priv_allow, priv_rule, 1, 1, 0,
	   "opens a number in a filter of our own; without a node to open, it is worth nothing"),
	OP(PRIV_DENY, priv_deny, priv_rule, 1, 1, 0, "only forbids"),
	OP(PRIV_KERNEL_MOUNTS, priv_kernel_mounts, priv_kernel_mounts, 1, 1, 0,
	   "mounts the pseudo filesystems of the caller's own namespaces at fixed places, without symlinks"),
	OP_ON(PRIV_MASK, priv_mask, priv_mask, path, 2, 2, 0, "hides, or makes read-only, a path below /proc or /sys"),
	OP(PRIV_CONSOLE, priv_console, priv_console, 2, 2, 2,
	   "a pty of the devpts at the given root, checked to be one"),
	OP_ON(PRIV_LINK, priv_link, net_link, host, 1, 1, 0,
	      "a pair with one end in the given namespace and one on the given bridge; which bridge is the server's "
	      "policy"),
	OP(PRIV_INSIDE, priv_inside, net_inside, 0, 0, 0,
	   "loopback, addresses and routes of the namespace that the caller is in"),
	OP_ON(PRIV_SYSCTL, priv_sysctl, priv_sysctl, name, 1, 1, 0,
	      "sets what the network and IPC namespaces that the caller is in have of their own, by a list"),
	OP(PRIV_SHAPE, priv_shape, net_shape, 0, 0, 0,
	   "slows down one end of a veth pair; whose pair is the server's policy"),
	OP(PRIV_FENCE, priv_fence, priv_fence, 2, 2, 1,
	   "programs that can only refuse, and only processes in a cgroup that the caller holds; the kernel verifies "
	   "them, so "
	   "that a description of its types that is not its own reads nothing but wrong numbers"),
	OP(PRIV_FENCE_SET, priv_fence_set, priv_fence_set, 1, 1, 0,
	   "refuses the use of a number's descriptors in a fence of our own, or no longer"),
	OP(PRIV_UEVENT, priv_uevent, priv_uevent, 2, 2, 0,
	   "is heard only in a network namespace that the caller holds, of another user namespace than the host's own, "
	   "whose root could say the same"),
	OP_ON(PRIV_NETDEV, priv_netdev, priv_netdev, name, 3, 3, 0,
	      "moves a link from one network namespace that the caller holds to another; whose link it is, is the "
	      "server's "
	      "policy"),
	OP(PRIV_RDMA, priv_rdma, priv_rdma, 3, 3, 0,
	   "moves an RDMA device from one network namespace that the caller holds to another; whose it is, is the "
	   "server's policy"),
	OP(PRIV_CLASS, priv_class, priv_class, 1, 1, 1,
	   "hides all RDMA devices of a sysfs below a root that the caller holds"),
	OP(PRIV_CLASS_LINK, priv_class_link, priv_class_link, 1, 1, 0,
	   "makes or removes a symbolic link in a tmpfs that the caller holds; it leads to nothing that could not be "
	   "named without it"),
	OP_ON(PRIV_GROUP_CREATE, priv_group_create, priv_group_create, name, 1, 1, 1,
	      "makes one group, of a name without slashes, in a directory checked to be of resctrl; how many there may "
	      "be "
	      "is the kernel's to count, and whose is the server's policy"),
	OP_ON(PRIV_GROUP_SET, priv_group_set, priv_group_set, line, 1, 1, 0,
	      "writes one line of the schemata of a group that the caller holds; whose group is the server's policy"),
	OP(PRIV_GROUP_JOIN, priv_group_join, priv_group_join, 2, 2, 0,
	   "moves only tasks of a cgroup that the caller holds, to a group that it holds: there are no numbers of "
	   "tasks "
	   "in it"),
	OP_ON(PRIV_GROUP_REMOVE, priv_group_remove, priv_group_remove, name, 1, 1, 0,
	      "removes one group of a directory of resctrl that the caller holds; its tasks have what is above it"),
	OP_ON(PRIV_GUIDS, priv_guids, priv_guids, driver, 1, 1, 0,
	      "names a virtual function on the fabric and has its driver take it anew; whose function it is, is the "
	      "server's policy"),
};
int priv_trace = -1;
int priv_proc = -1;
const size_t priv_operation_count = ARRAY_SIZE(priv_operations);

static void trace(const struct priv_operation *o, const void *request)
{
	const char *text = o->told ? (const char *)request + o->told - 1 : "";
	char line[PRIV_PATH + 64];
	int queued = 0;
	int length = snprintf(line, sizeof(line), "ctrmgr-monitor: %s %.*s", o->name,
			      o->told ? (int)(o->size - o->told + 1) : 0, text);

	if (length >= (int)sizeof(line))
		length = (int)sizeof(line) - 1;
	while (length && line[length - 1] == ' ')
		length--;
	line[length++] = '\n';
	/* a client that reads no more must find room for its reply */
	if (!ioctl(priv_trace, SIOCOUTQ, &queued) && queued > TRACE_QUEUE)
		return;
	if (send(priv_trace, line, (size_t)length, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 && errno == ENOTSOCK)
		(void)!write(priv_trace, line, (size_t)length);
}

int priv_call(enum priv_number number, const void *request, size_t size, const int in[], int count, int out[],
	      struct failure *f)
{
	const struct priv_operation *o;

	errno = EINVAL;
	if (number <= 0 || (size_t)number >= priv_operation_count || !priv_operations[number].run)
		return fail(f, "privileged operation", "no operation %d", (int)number);
	o = &priv_operations[number];
	if (size != o->size || count < o->in_min || count > o->in_max)
		return fail(f, o->name, "a request of %zu bytes with %d descriptors", size, count);
	for (int i = 0; out && i < o->out; i++)
		out[i] = -1;
	if (priv_trace >= 0)
		trace(o, request);
	errno = 0;
	return o->run(request, in, count, out, f);
}

bool priv_is_on(int fd, long type)
{
	struct statfs s;

	if (fstatfs(fd, &s))
		return false;
	errno = EINVAL;
	return s.f_type == type;
}

bool priv_instance_ids(uint32_t uid, uint32_t gid)
{
	errno = uid && gid ? EINVAL : EPERM;
	return uid && gid && uid != UINT32_MAX && gid != UINT32_MAX;
}

void priv_fs_ids(uint32_t uid, uint32_t gid)
{
	setfsgid(gid);
	setfsuid(uid);
}

int priv_link(const void *request, const int in[], int count, int out[], struct failure *f)
{
	const struct net_link *link = request;
	const char *failed = "link";
	int error = net_link(in[0], link, &failed);

	(void)count, (void)out;
	errno = -error;
	return error ? fail(f, "make the network link", "%s: `%.15s` on `%.15s`", failed, link->host, link->bridge) : 0;
}

int priv_inside(const void *request, const int in[], int count, int out[], struct failure *f)
{
	const char *failed = "loopback";
	int error = net_inside(request, &failed);

	(void)in, (void)count, (void)out;
	errno = -error;
	return error ? fail(f, "set the network up inside", "%s", failed) : 0;
}

int priv_shape(const void *request, const int in[], int count, int out[], struct failure *f)
{
	const struct net_shape *shape = request;
	const char *failed;
	int error = net_shape(shape, &failed);

	(void)in, (void)count, (void)out;
	errno = -error;
	return error ? fail(f, "limit the network link", "%s: `%.15s`", failed, shape->link) : 0;
}
