/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * The privileged seam: everything that needs a right of the host is one operation of this table.
 *
 * An operation takes one fixed-size request and inherited descriptors, never a path that the caller
 * chose where a descriptor can serve. Each says in `safety` why a hostile caller gains nothing that the
 * descriptors it brings do not give it already. Root calls the table in its own process (priv_call), and
 * nothing in a request depends on that: it could as well come over a socket. Policy - whose devices, whose id
 * range - is for whoever serves it to somebody less privileged to check, on the request and on the descriptors.
 *
 * A request that is malformed, and a descriptor that is not what its operation says, is refused before anything is
 * touched: EINVAL, no descriptor EBADF, host root as an instance's id EPERM, a node that is not the device that was
 * named ENODEV. What only the kernel can know has the kernel's errno. tests/rootful/test_privileged_table.py asks for
 * each. */
#pragma once
#include "common.h"
#include "plan.h"

#define PRIV_FDS  40
#define PRIV_NAME 64
#define PRIV_PATH 256
#define PRIV_LINE 1024

/* How deep an instance may nest cgroups, so that whoever walks them sees all. */
#define CGROUP_DEPTH 64

enum priv_number {
	PRIV_CGROUP_CREATE = 1,
	PRIV_CGROUP_WRITE = 2,
	PRIV_CGROUP_REMOVE = 3,
	PRIV_IDMAP = 4,
	PRIV_LAYER = 5,
	PRIV_OVERLAY = 6,
	PRIV_DEV = 7,
	PRIV_NODE = 8,
	PRIV_REVOKE = 9,
	PRIV_PROGRAM = 10,
	PRIV_ALLOW = 11,
	PRIV_DENY = 12,
	PRIV_KERNEL_MOUNTS = 13,
	PRIV_MASK = 14,
	PRIV_CONSOLE = 15,
	PRIV_LINK = 16,
	PRIV_INSIDE = 17,
	PRIV_SHAPE = 18,
	PRIV_PLACE = 19,
	PRIV_GRANT = 20,
	PRIV_CLONE = 21,
	PRIV_BIND = 22,
	PRIV_UNBIND = 23,
	PRIV_SYSCTL = 24,
	PRIV_FENCE = 28,
	PRIV_FENCE_SET = 29,
	PRIV_UEVENT = 30,
	PRIV_FILESYSTEM = 32,
	PRIV_SHIFT = 33,
	PRIV_NETDEV = 34,
	PRIV_RDMA = 35,
	PRIV_CLASS = 36,
	PRIV_CLASS_LINK = 37,
	PRIV_GROUP_CREATE = 38,
	PRIV_GROUP_SET = 39,
	PRIV_GROUP_JOIN = 40,
	PRIV_GROUP_REMOVE = 41,
	PRIV_GUIDS = 42,
};

/* in: parent cgroup directory. out: the new one. */
struct priv_cgroup_create {
	char name[PRIV_NAME];
	uint32_t uid, gid; /* who may make cgroups below it; 0: nobody but root */
};

/* in: cgroup directory. */
struct priv_cgroup_write {
	char file[PRIV_NAME];
	char value[PRIV_PATH];
};

/* in: parent cgroup directory. Kills what is left in it. */
struct priv_cgroup_remove {
	char name[PRIV_NAME];
};

/* in: the process's /proc directory. */
struct priv_idmap {
	uint32_t uids, gids;
	struct id_map uid[PLAN_MAPS], gid[PLAN_MAPS];
};

/* in: directory, user namespace (or none: not idmapped). out: detached mount. */
struct priv_layer {
	uint32_t read_only;
};

/* in: place to work in (a directory of the caller's private mount namespace), mount that holds
 * `upper` and `work`, layers top-most first. out: detached overlay mount. */
struct priv_overlay {
	uint32_t uid, gid; /* host ids of the instance's root */
};

/* out: detached tmpfs for /dev. */
struct priv_dev {
	uint32_t uid, gid; /* host ids of the instance's root */
	uint32_t tty_gid;  /* host id of group 5 */
};

/* in: root of the /dev tmpfs, the host's node (O_PATH). out: the new inode (O_PATH), under a name of its own. */
struct priv_node {
	char aside[PRIV_NAME]; /* below /dev, without a slash */
	uint32_t type;         /* S_IFCHR or S_IFBLK */
	uint32_t major, minor;
	uint32_t mode, uid, gid; /* host ids */
};

/* in: root of the /dev tmpfs. out: the first directory that had to be made for it, or none. */
struct priv_place {
	char aside[PRIV_NAME];
	char path[PRIV_PATH];        /* below /dev, relative */
	uint32_t root_uid, root_gid; /* owner of directories that have to be made */
};

/* in: root of the /dev tmpfs, the inode that PRIV_NODE gave, perhaps what PRIV_PLACE gave. */
struct priv_revoke {
	char path[PRIV_PATH];
	uint32_t uid, gid; /* ids that the instance does not map */
	uint32_t keep;     /* the name stays: it will be granted again */
};

/* in: root of the /dev tmpfs, the inode. */
struct priv_grant {
	uint32_t mode, uid, gid; /* host ids */
};

/* in: the source (O_PATH); if it is in another mount namespace than the caller: that one, the caller's own.
 * out: detached mount. */
struct priv_clone {
	uint32_t writable, executable;
	uint32_t recursive; /* with what is mounted below */
};

/* in: the block device's node (O_PATH), for a type that is on one. out: detached mount. */
struct priv_filesystem {
	char type[PRIV_NAME];
	char data[PRIV_PATH]; /* the file system's own options, with commas between */
	char name[PRIV_NAME]; /* what the instance sees as its source */
	uint32_t writable, executable;
	uint32_t uid, gid; /* host ids of the instance's root, whose is what has no owner of its own */
};

/* in: detached mount, user namespace. */
struct priv_shift {
	uint32_t recursive;
};

/* in: the instance's root, detached mount. What has to be made for it is marked as ours. */
struct priv_bind {
	char path[PRIV_PATH]; /* below the root, relative */
	uint32_t uid, gid;    /* host ids of the instance's root */
};

/* in: the instance's root, the mount. */
struct priv_unbind {
	char path[PRIV_PATH];
	uint32_t uid, gid;
};

/* in: cgroup2 directory, or (v1) a `devices` cgroup; and the map, to put its program back. out: the map (v1: the cgroup
 * again). */
struct priv_program {
	uint32_t v1;
};

/* in: what PRIV_PROGRAM gave. */
struct priv_rule {
	uint32_t v1;
	uint32_t type;         /* S_IFCHR or S_IFBLK */
	uint32_t major, minor; /* UINT32_MAX: any */
	uint32_t access;       /* BPF_DEVCG_ACC_* */
};

/* in: cgroup2 directory, the kernel's BTF. out: the fence. */
struct priv_fence {
	uint32_t flags; /* none yet */
};

/* in: what PRIV_FENCE gave. */
struct priv_fence_set {
	uint32_t type; /* S_IFCHR or S_IFBLK */
	uint32_t major, minor;
	uint32_t closed; /* else open again */
};

/* in: the instance's network namespace, the caller's own. */
struct priv_uevent {
	uint32_t uid, gid; /* host ids of the instance's root */
	uint32_t size;
	char text[1968]; /* ended words; with what the kernel adds it has 2048 bytes */
};

/* Called in the instance's pid, network, ipc and cgroup namespaces. in: the instance's root. */
struct priv_kernel_mounts {
	uint32_t host_network; /* /sys shows the host's links, too: read-only */
	uint32_t cgroup;       /* mount cgroup2 */
	uint32_t uid, gid, tty_gid;
};

/* in: the instance's root, its /dev. */
struct priv_mask {
	char path[PRIV_PATH]; /* below /proc or /sys, relative to the root */
	uint32_t read_only;   /* else masked */
};

/* in: the instance's root, its /dev. out: master and slave of the console's pty. */
struct priv_console {
	uint32_t uid, gid; /* host ids of the instance's root */
};

/* Called in the instance's network and IPC namespaces. in: the instance's root. */
struct priv_sysctl {
	char name[PRIV_PATH]; /* below /proc/sys */
	char value[PRIV_PATH];
	uint32_t uid, gid; /* host ids of the instance's root */
};

/* PRIV_LINK: struct net_link, in: network namespace of the instance.
 * PRIV_INSIDE: struct net_inside, called in that namespace.
 * PRIV_SHAPE: struct net_shape. */

/* in: network namespace that the link is in, the one that it goes to, the caller's own. */
struct priv_netdev {
	uint32_t index; /* in the first */
	char name[16];  /* in the second */
	uint8_t address[32];
	uint32_t address_size, mtu; /* 0: as it is */
	uint32_t up;
};

/* in: as PRIV_NETDEV. For hosts where an RDMA device is in one network namespace only. */
struct priv_rdma {
	uint32_t index; /* the kernel's, of the RDMA device */
};

/* in: sysfs. Of a virtual function, whose driver reads them anew. */
struct priv_guids {
	uint64_t node, port;
	uint32_t link, function; /* of its physical function: the index of that's link, and which one it is */
	char address[16];        /* of PCI */
	char driver[PRIV_NAME];
};

/* in: the instance's root. out: the mount that covers the folder from now on. */
struct priv_class {
	char name[PRIV_NAME]; /* of /sys/class, one of RDMA's */
};

/* in: what PRIV_CLASS gave. */
struct priv_class_link {
	char name[PRIV_NAME];
	char target[PRIV_PATH]; /* `../../devices/…`; empty: none any more */
};

/* in: resctrl, or the `mon_groups` of a group in it. out: the new group. */
struct priv_group_create {
	char name[PRIV_PATH];
};

/* in: a group of resctrl. */
struct priv_group_set {
	char line[PRIV_LINE]; /* of its `schemata` */
};

/* in: a group of resctrl, cgroup directory: its tasks, and those below it. */
struct priv_group_join {
	uint32_t flags; /* none yet */
};

/* in: as PRIV_GROUP_CREATE. Its tasks are again in what is above it. */
struct priv_group_remove {
	char name[PRIV_PATH];
};

struct priv_operation {
	const char *name;
	size_t size; /* of the request */
	int in_min, in_max, out;
	int (*run)(const void *request, const int in[], int count, int out[], struct failure *f);
	const char *safety;
	size_t told; /* behind the name, by priv_trace: 1 + where in the request a text is; or 0 */
};

extern const struct priv_operation priv_operations[];
extern const size_t priv_operation_count;

/* Where each operation is named (`--debug`), or -1: stderr, or a client that is not waited for. */
extern int priv_trace;

/* The caller's own /proc, in which its descriptors have names: kernels before 6.6 need that to chmod one. */
extern int priv_proc;

/* Runs an operation in this process. `out` may be NULL where there is none. 0, or -1 with `f` filled. */
int priv_call(enum priv_number number, const void *request, size_t size, const int in[], int count, int out[],
	      struct failure *f);

#define PRIV_CALL(number, request, out, f, ...) \
	priv_call(number, request, sizeof(*(request)), (const int[]){__VA_ARGS__}, \
		  (int)ARRAY_SIZE(((const int[]){__VA_ARGS__})), out, f)

/* The operations, one file a family. */
#define PRIV_OPERATION(name) int name(const void *, const int[], int, int[], struct failure *)
PRIV_OPERATION(priv_cgroup_create);
PRIV_OPERATION(priv_cgroup_write);
PRIV_OPERATION(priv_cgroup_remove);
PRIV_OPERATION(priv_idmap);
PRIV_OPERATION(priv_layer);
PRIV_OPERATION(priv_overlay);
PRIV_OPERATION(priv_dev);
PRIV_OPERATION(priv_node);
PRIV_OPERATION(priv_place);
PRIV_OPERATION(priv_revoke);
PRIV_OPERATION(priv_grant);
PRIV_OPERATION(priv_clone);
PRIV_OPERATION(priv_filesystem);
PRIV_OPERATION(priv_shift);
PRIV_OPERATION(priv_bind);
PRIV_OPERATION(priv_unbind);
PRIV_OPERATION(priv_program);
PRIV_OPERATION(priv_allow);
PRIV_OPERATION(priv_deny);
PRIV_OPERATION(priv_kernel_mounts);
PRIV_OPERATION(priv_mask);
PRIV_OPERATION(priv_console);
PRIV_OPERATION(priv_link);
PRIV_OPERATION(priv_inside);
PRIV_OPERATION(priv_shape);
PRIV_OPERATION(priv_sysctl);
PRIV_OPERATION(priv_fence);
PRIV_OPERATION(priv_fence_set);
PRIV_OPERATION(priv_uevent);
PRIV_OPERATION(priv_netdev);
PRIV_OPERATION(priv_rdma);
PRIV_OPERATION(priv_class);
PRIV_OPERATION(priv_class_link);
PRIV_OPERATION(priv_group_create);
PRIV_OPERATION(priv_group_set);
PRIV_OPERATION(priv_group_join);
PRIV_OPERATION(priv_group_remove);
PRIV_OPERATION(priv_guids);

/* Whether it came with every instance, and is not ours to give or to take. */
bool priv_always_allowed(uint32_t type, uint32_t major, uint32_t minor);

/* Whether these are host ids of an instance: sets errno, EPERM for host root, EINVAL for the -1 that chown and setfsuid
 * take for "as it is". */
bool priv_instance_ids(uint32_t uid, uint32_t gid);

/* Whether a descriptor is of a cgroup filesystem of either version. */
/* Whether it is in a file system of that kind. */
bool priv_is_on(int fd, long type);
bool priv_is_cgroup(int fd);

/* Becomes, for the filesystem, the instance's root: what is made then belongs to it, and a path that it
 * prepared opens nothing that it could not open. Undone by passing 0, 0. */
void priv_fs_ids(uint32_t uid, uint32_t gid);

/* What the kernel says of a mount that failed, or "". */
void priv_context_says(int context, char *text, size_t size);
