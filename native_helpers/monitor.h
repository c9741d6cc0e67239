/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * One instance's monitor: it starts the instance (start.c, child.c and what start.h names), then keeps what is needed
 * to attach to it, freeze it and end it (monitor.c, control.c, parts.c, devices.c, holders.c, uevent.c). */
#pragma once
#include "common.h"
#include "control.h"
#include "plan.h"
#include "priv.h"

#include <sys/types.h>

/* Descriptors that the starter hands over. */
enum { FD_PLAN = 3, FD_INSTANCE = 4, FD_RUN = 5, FD_REPORT = 6, FD_LOCK = 7 };

#define HIERARCHIES 16
#define PARTS       256
#define CLASSES     4    /* of /sys/class */
#define PAGE        4096 /* where a large table begins, so that its beginning touches no second one */
#define CLIENTS     32
#define UEVENT_MAX  2048          /* the kernel's own limit */
#define STARTING    (CLIENTS + 1) /* who prepares parts when no client does */
#define PLUGGING    (CLIENTS + 2) /* a rule: its device is there already */

/* A mounted hierarchy in which the instance has a cgroup. */
struct hierarchy {
	char name[32]; /* "unified" or the v1 controllers as mounted ("cpu,cpuacct") */
	int parent;    /* directory in which the instance's cgroup is */
	int dir;       /* the instance's cgroup */
};

enum part_state {
	PART_FREE, /* all zero, so that parts that nobody needs take no memory */
	PART_PREPARED,
	PART_HELD,
	PART_SUSPENDED, /* a node that opens nothing */
};

struct part {
	struct ctl_device device; /* uid and gid as inside */
	enum part_state state;
	int client;     /* whose transaction it is in; 0: none any more */
	int fd;         /* a node's inode that nobody else shares, or the mount */
	int made;       /* the first directory of /dev that had to be made for it */
	bool placed;    /* it has its own name */
	bool untold;    /* nobody inside has been told of it yet */
	char aside[32]; /* a node's until then */
	char *text;     /* a variable's, a hook's */
	size_t size;
};

struct client {
	int fd;     /* -1: free */
	bool waits; /* for the instance's end */
	bool traces;
};

struct monitor {
	char *text; /* the plan's */
	size_t text_size;
	int lock, proc, exe, init_program, hook_program, root, dev, host_mounts;
	struct hierarchy hierarchy[HIERARCHIES]; /* [0] is cgroup2 where there is one */
	size_t hierarchies;
	bool filter_v1;
	int filter; /* what PRIV_ALLOW takes */
	int fence;  /* what PRIV_FENCE_SET takes */
	enum ctl_open_fds fence_state;
	char fence_reason[CTL_NAME_MAX];
	pid_t init;
	int pidfd, console, console_log;
	uint64_t console_used, started_ns;
	int listener, signals;
	int uevents, host_sys, host_dev; /* -1: no device has a rule */
	int class[CLASSES];              /* what covers the folders of RDMA devices; -1: not there */
	bool has_classes;                /* the kernel has resctrl: a class may come at any time */
	int resctrl, group[2];           /* the instance's class, and what is monitored of it; -1: none */
	struct client client[CLIENTS];
	uint32_t root_uid, root_gid, dead_uid, dead_gid;
	int exit_status;    /* wait(2) status, -1 while init runs */
	int64_t stop_at;    /* CLOCK_MONOTONIC ms at which a polite stop becomes a kill; 0: none */
	int64_t ask_at;     /* at which init, which did not listen yet, is asked again to end; 0: it was heard */
	int64_t look_at;    /* at which the rules are tried again, because a node was leased to others; 0: none */
	int64_t console_at; /* at which a console that nobody inside has open is looked at again; 0: it is open */
	bool stopping, restarted;
	bool again; /* a run that this monitor began by itself after another: nobody waits for a report */
	char rlimit[RLIM_NLIMITS][CTL_NAME_MAX + 16]; /* changed since the start; as ctrmgr-exec takes them */
	char oom[32];                                 /* the same, of how likely they are killed when memory runs out */
	struct plan plan;
	size_t used; /* slots below, the rest of which was never touched */
	_Alignas(PAGE) struct part part[PARTS];
};

/* prepare.c: the plan, our programs, the cgroups; nothing is changed yet. */
int monitor_open(struct monitor *m, struct failure *f);

/* start.c */
int monitor_start(struct monitor *m, struct failure *f);
void state_write(struct monitor *m, bool frozen);
void monitor_clean(struct monitor *m);                    /* cgroups, links, what the run directory holds */
int start_namespace(struct monitor *m, const char *kind); /* a descriptor of init's, by the kernel's name for it */

/* monitor.c. Everything is there but init: who started us runs what the plan's `host-hook` rows say, and answers. */
int monitor_host_hooks(struct monitor *m, struct failure *f);

/* cgroups.c */
int cgroups_find(struct monitor *m, struct failure *f);
int cgroups_create(struct monitor *m, struct failure *f);
/* `mount`: where a v1 hierarchy is that the instance may not be in yet, or -1. ENOENT: it is not, and does not join it.
 */
int cgroups_limit(struct monitor *m, const char *hierarchy, const char *file, const char *value, int mount,
		  struct failure *f);
int cgroups_join(struct monitor *m, pid_t pid, struct failure *f); /* the v1 ones */
void cgroups_remove(struct monitor *m);
bool cgroups_frozen(const struct monitor *m);
int cgroups_freeze(struct monitor *m, bool freeze, struct failure *f); /* all processes, or none */

/* members.c. Calls `visit` with each process of the instance; stops when it returns non-zero. */
int cgroups_each(struct monitor *m, int (*visit)(pid_t pid, void *data), void *data);
void cgroups_kill(struct monitor *m);
bool members_have(const struct monitor *m, int process); /* the process whose folder of /proc that is */
void members_kill(const struct monitor *m, int process, pid_t pid);
/* In a process of the instance's pid namespace, for which numbers are those inside: none can be another's of the host.
 */
int members_inside(struct monitor *m, int (*work)(struct monitor *m, void *data, struct failure *f), void *data,
		   struct failure *f);

/* guarantee.c: a file of a cgroup below `parent` was written, or a cgroup has gone. */
void guarantee_changed(int parent, const char *file);
void guarantee_gone(int parent);

/* child.c */
struct child {
	struct monitor *m;
	int from_parent, to_parent; /* bytes: 'm' maps are written, 'n' namespaces made, 'g' go */
	int report;                 /* close-on-exec: struct failure, or end of file when init runs */
	int slave;                  /* of the console, received late: -1 until then */
};
_Noreturn void child_main(struct child *c);
int child_hooks_ms(const struct plan *p); /* that it gives them */

/* parts.c. A transaction is `client`'s, as control.c counts them, or STARTING's. */
int part_prepare(struct monitor *m, const struct ctl_device *wanted, int client, int source, const char *text,
		 size_t size, struct failure *f);                  /* source: the host's node, or a detached mount */
int part_commit(struct monitor *m, int client, struct failure *f); /* all of them, or none */
void parts_tell(struct monitor *m); /* the uevents of what was committed: nobody need wait for them */
void part_abandon(struct monitor *m, int client);
struct part *part_next(struct monitor *m, const char *name, const struct part *after); /* of those committed */
struct part *part_sharer(struct monitor *m, const struct part *p); /* another device's wish for it, or NULL */
bool part_is_node(const struct part *p);
int part_filter(struct monitor *m, const struct part *p, struct failure *f); /* after a change of state */
int part_revoke(struct monitor *m, const struct part *p, bool keep, struct failure *f);
int part_withdraw(struct monitor *m, struct part *p, struct failure *f);
void part_free(struct part *p);
int part_renew(struct monitor *m, struct part *p, int source, struct failure *f); /* its node, from the host's */

/* classes.c: of RDMA devices, /sys/class shows those that the instance has a node of. After each change of nodes. */
int classes_show(struct monitor *m, struct failure *f);

/* mounts.c: what a device mounts, detached. */
int mount_clone(struct monitor *m, uint32_t access, int source, struct failure *f); /* source: in the host's mounts */
int mount_filesystem(struct monitor *m, const char *const words[3], uint32_t access, int source, struct failure *f);
int mount_shift(struct monitor *m, uint32_t access, int mount, struct failure *f);
bool part_is_mount(const struct part *p);
void mount_end(struct monitor *m); /* disks are free before anybody hears that init has ended */

/* devices.c */
int device_part(struct monitor *m, const struct ctl_device *wanted, int client, int source, const char *text,
		size_t size, struct failure *f); /* source: as it came from a client */
int device_attach(struct monitor *m, const struct ctl_device *d, int client, int node, struct failure *f);
/* count: who has it; revoked: descriptors that its driver has taken back */
int device_take(struct monitor *m, const char *name, bool for_good, int policy, struct ctl_holder *holders, int *count,
		int *revoked, struct failure *f);
int device_resume(struct monitor *m, const char *name, struct failure *f);

/* hotplug.c: what comes and goes on the host, for the rules that devices have. */
int hotplug_open(struct monitor *m, struct failure *f); /* from now on nothing is missed */
void hotplug_refresh(struct monitor *m);                /* rules have come or gone, or events are lost */
void hotplug_serve(struct monitor *m);

/* lease.c: of a node that a rule brings. -1: others have it, or somebody is at it just now. `mode` NULL: shared. */
int lease_take(struct monitor *m, const struct ctl_device *d, const char *mode);
void lease_return(struct monitor *m, const struct ctl_device *d);
/* The same of hardware, by its id in the rows of the plan. */
int lease_take_id(struct monitor *m, const char *id, const char *device, const char *mode);
void lease_return_id(struct monitor *m, const char *id, const char *device);
/* Another run of the same monitor's: what is to come and go has the plan's leases again, not those that it had last. */
int leases_again(struct monitor *m, struct failure *f);

/* uevent.c: tells the instance that a node has come or gone. `heard`: what the kernel said of it, where sysfs has
 * nothing any more, as words that each end. */
void uevent_node(struct monitor *m, const struct ctl_device *d, bool comes, const char *heard, size_t size);
/* Where sysfs has the device (`/devices/…`), and its class; false where no driver has put it there. */
bool uevent_place(const struct monitor *m, const struct ctl_device *d, char *place, char *class, size_t size);
/* What `key` of the text of a uevent is; false when it does not fit. */
bool uevent_value(const char *text, char end, size_t size, const char *key, char *value, size_t room);

/* fence.c: refuses the use of descriptors of that device that are open, or no longer. */
void fence_number(struct monitor *m, const struct ctl_device *d, bool closed);

/* parameter.c: `detail` says what it was before. */
int parameter_set(struct monitor *m, const char *name, const char *value, struct failure *f);

/* rlimits.c: the same. */
int rlimit_set(struct monitor *m, const char *name, const char *value, struct failure *f);
/* `value`: as /proc has it; "": what we have ourselves. */
int oom_set(struct monitor *m, const char *value, struct failure *f);

/* links.c, links_repair.c: links of the host's that are the instance's for a while. */
int links_record(struct monitor *m);  /* which, and what they were, for whoever must bring them back without us */
void links_return(struct monitor *m); /* all of them */
void links_repair(struct monitor *m); /* by the record */

/* guids.c: of virtual functions, by the notes of who set them; what cannot be put back waits for the next command. */
void guids_return(struct monitor *m);

/* resctrl.c: a class of cache and memory bandwidth. */
int resctrl_prepare(struct monitor *m, struct part *p, int source, struct failure *f);
int resctrl_place(struct monitor *m, struct part *p, struct failure *f);
int resctrl_withdraw(struct monitor *m, struct part *p, struct failure *f);
size_t resctrl_tasks(const struct monitor *m, int fds[2]); /* `tasks`, in the order in which a process joins */
void resctrl_repair(struct monitor *m);                    /* removes what is ours, by the record */

/* mend.c */
int mend_filter(struct monitor *m, struct failure *f);
int mend_node(struct monitor *m, const char *name, const char *path, int source, struct failure *f);

/* holders.c: fills at most CTL_HOLDERS_MAX, returns how many there are. Unless `revoked` is NULL, what is open is
 * revoked first where a driver can do that: so many were. With `kill` none of them lives on. */
int holders_find(struct monitor *m, const char *name, struct ctl_holder *holders, int *revoked, bool kill);

/* control.c */
int control_listen(struct monitor *m, struct failure *f);
void control_accept(struct monitor *m);
void control_serve(struct monitor *m, struct client *c);
void control_trace_end(struct monitor *m); /* who waits for the end hears its operations */
void control_end(struct monitor *m);       /* answers those who wait for the end */

/* monitor.c */
_Noreturn void monitor_run(struct monitor *m);
int64_t now_ms(void);

/* stop.c */
void stop_begin(struct monitor *m, int timeout_ms); /* 0: the plan's; then it is killed */
void stop_ask(struct monitor *m);
int stop_signal(const struct monitor *m, int signal); /* to init */
