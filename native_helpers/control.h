/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * The monitor's control protocol: one request, one reply, over a SEQPACKET
 * socket. All integers are native-endian (both ends are the same machine).
 * Numbers are never reused and layouts only grow: an old monitor may be asked
 * by a new command, and the other way round.
 * ctrmgr/kernel/control.py is the other end; tests compare the two. */
#pragma once
#include <stdint.h>

#define CTL_VERSION     1u
#define CTL_NAME_MAX    64
#define CTL_PATH_MAX    256
#define CTL_HOLDERS_MAX 64
#define CTL_TEXT_MAX    4096

enum ctl_op {
	CTL_STATUS = 1,  /* reply: ctl_status in data */
	CTL_ATTACH = 2,  /* ctl_device + fd of the host's node (O_PATH) */
	CTL_DETACH = 3,  /* name, holders policy; reply: ctl_holder[] in data; how many open descriptors the driver
			    has revoked in detail, in words; value: of how many processes others are left */
	CTL_DEVICES = 4, /* reply: ctl_device[] in data (what is attached now) */
	CTL_STOP = 5,    /* arg0: timeout in ms (0: the plan's), then SIGKILL; replies when it is gone */
	CTL_KILL = 6,    /* replies when it is gone */
	CTL_FREEZE = 7,
	CTL_THAW = 8,
	CTL_ENTER = 9,   /* reply fds: pidfd of init, cgroup2 dir, plan, [v1 cgroup.procs…, resctrl's tasks…]; data:
			    devices' KEY=VALUE   and =GID, each ended; value: 1 if a class may come: whoever is in the
			    cgroup asks again for its tasks */
	CTL_SIGNAL = 10, /* arg0: signal to init */
	CTL_WAIT = 11,   /* replies when init has ended */
	CTL_LIMIT = 12,  /* hierarchy in name, file in path, value in value: write a cgroup file; with the hierarchy's
			  * mount point as a descriptor a v1 one is joined */
	CTL_PART = 13, /* ctl_device (+ fd of the host's node or file), of ENV and HOOK the text behind it: prepared */
	CTL_COMMIT = 14,  /* all that this connection has prepared, or nothing; so is what a lost one has prepared */
	CTL_SUSPEND = 15, /* as CTL_DETACH, until */
	CTL_RESUME = 16,  /* name */
	CTL_TEXT = 17,   /* name; reply: its hooks in data, for each a uint32_t size and so many bytes of ended words */
	CTL_RLIMIT = 18, /* name in path, SOFT:HARD in value, of what runs and what comes; reply: as CTL_SYSCTL */
	CTL_SYSCTL = 19, /* path below /proc/sys in path, value in value; reply: what it was in detail */
	CTL_MEND_FILTER = 20, /* put the device program back */
	CTL_MEND_NODE = 21,   /* name, path + fd of the host's node (O_PATH): make the device's node again */
	CTL_TRACE = 22, /* name the kernel operations of this connection's further requests: each a packet without a
			   ctl_reply, before the reply; one that finds no room is left out */
	CTL_OOM = 23,   /* value: oom_score_adj of what runs and comes ("": the monitor's); reply: as CTL_SYSCTL */
};

enum ctl_holders { CTL_REPORT = 0, CTL_REFUSE = 1, CTL_FREEZE_HOLDERS = 2, CTL_KILL_HOLDERS = 3 };

enum ctl_device_type {
	CTL_CHAR = 1,
	CTL_BLOCK = 2,
	CTL_BIND = 3,   /* path: anywhere inside, access: READ, with WRITE and EXEC where allowed */
	CTL_ENV = 4,    /* text: KEY=VALUE */
	CTL_HOOK = 5,   /* text: words, which the monitor keeps for whoever detaches */
	CTL_SHARE = 6,  /* path: of a part of another device's, which becomes this one's when that is detached */
	CTL_RULE = 7,   /* text: words, of which nodes of the host's come and go; owner, mode, access: theirs */
	CTL_NETDEV = 8, /* path: its name inside; text: the host's link, hardware address, mtu; "" and 0: as it is */
	CTL_RDMA = 9,   /* path: an RDMA device, the instance's alone where the host keeps them apart */
	CTL_GROUP = 11, /* text: `=` and the number of a group inside, which commands have besides their own */
	CTL_FILESYSTEM = 10, /* as CTL_BIND; text: type, options, name; fd: block device, if it is on one */
	CTL_RESCTRL = 12,    /* text: class, where resctrl is mounted, `monitored` or "", lines of schemata; fd: that */
};
enum ctl_access {
	CTL_MKNOD = 1, /* the first three are the kernel's BPF_DEVCG_ACC_* */
	CTL_READ = 2,
	CTL_WRITE = 4,
	CTL_EXEC = 8,
	CTL_SUSPENDED = 16, /* reply of CTL_DEVICES: taken for now */
	CTL_SHIFT = 32,     /* of a mount: the ids in it are the instance's own */
	CTL_RECURSIVE = 64, /* of a bind: with what is mounted below */
};

struct ctl_device {
	char name[CTL_NAME_MAX];
	char path[CTL_PATH_MAX]; /* inside, absolute; of a node below /dev */
	char user[CTL_NAME_MAX]; /* number or name in the instance's /etc/passwd */
	char group[CTL_NAME_MAX];
	uint32_t type; /* enum ctl_device_type */
	uint32_t major, minor;
	uint32_t mode;
	uint32_t access;   /* enum ctl_access bits */
	uint32_t uid, gid; /* reply of CTL_DEVICES: as seen inside */
};

struct ctl_request {
	uint32_t version;
	uint32_t op;
	int32_t arg0, arg1;
	char value[CTL_PATH_MAX];
	struct ctl_device device; /* name/path are used by the ops without a device too */
};

struct ctl_holder {
	int32_t pid;       /* in the caller's (the host's) pid namespace */
	int32_t inner_pid; /* in the instance */
	int32_t fds;       /* open descriptors on the device */
	int32_t maps;      /* mappings of it */
	char comm[16];
};

/* What becomes of descriptors that are open when a device is taken away. */
enum ctl_open_fds { CTL_FDS_UNTRIED = 0, CTL_FDS_REVOKED = 1, CTL_FDS_HELD = 2 };

struct ctl_status {
	int32_t monitor_pid, init_pid;
	int32_t frozen;
	int32_t exit_status; /* wait(2) status once init has ended */
	uint64_t started_ns; /* CLOCK_REALTIME */
	uint32_t open_fds;   /* enum ctl_open_fds */
	char open_fds_reason[CTL_NAME_MAX + 4];
};

struct ctl_reply {
	uint32_t version;
	int32_t error; /* errno, 0 for success */
	int32_t count; /* structs that follow, in the same packet */
	int32_t value;
	char step[64]; /* what failed, in words: "make the node", "allow the device" … */
	char detail[CTL_PATH_MAX];
};

/* fd 6 of `ctrmgr-monitor start`: one of these when init runs or the start failed. */
struct start_report {
	uint32_t version;
	int32_t error; /* 0: init runs */
	int32_t monitor_pid, init_pid;
	char step[64];
	char detail[CTL_PATH_MAX];
};
