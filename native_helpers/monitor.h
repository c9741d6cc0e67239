/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * One instance's monitor: it starts the instance (start.c, child.c and what start.h names), then keeps what is needed
 * to attach to it, freeze it and end it (monitor.c, control.c, devices.c, holders.c). */
#pragma once
#include "common.h"
#include "control.h"
#include "plan.h"
#include "priv.h"

#include <sys/types.h>

/* Descriptors that the starter hands over. */
enum { FD_PLAN = 3, FD_INSTANCE = 4, FD_RUN = 5, FD_REPORT = 6, FD_LOCK = 7 };

#define HIERARCHIES 16
#define LEASES      128
#define CLIENTS     32

/* A mounted hierarchy in which the instance has a cgroup. */
struct hierarchy {
	char name[32]; /* "unified" or the v1 controllers as mounted ("cpu,cpuacct") */
	int parent;    /* directory in which the instance's cgroup is */
	int dir;       /* the instance's cgroup */
};

struct lease {
	struct ctl_device device; /* uid and gid as inside */
	int inode;
	bool held; /* else free: all zero, so that leases that nobody needs take no memory */
};

struct client {
	int fd;     /* -1: free */
	bool waits; /* for the instance's end */
};

struct monitor {
	struct plan plan;
	char *text; /* the plan's */
	size_t text_size;
	int lock, proc, exe, init_program, root, dev, host_mounts;
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
	struct client client[CLIENTS];
	struct lease lease[LEASES];
	uint32_t root_uid, root_gid, dead_uid, dead_gid;
	int exit_status; /* wait(2) status, -1 while init runs */
	int64_t stop_at; /* CLOCK_MONOTONIC ms at which a polite stop becomes a kill; 0: none */
	bool stopping, restarted;
};

/* prepare.c: the plan, our programs, the cgroups; nothing is changed yet. */
int monitor_open(struct monitor *m, struct failure *f);

/* start.c */
int monitor_start(struct monitor *m, struct failure *f);
void state_write(struct monitor *m, bool frozen);
void monitor_clean(struct monitor *m); /* cgroups, what the run directory holds */

/* cgroups.c */
int cgroups_find(struct monitor *m, struct failure *f);
int cgroups_create(struct monitor *m, struct failure *f);
int cgroups_limit(struct monitor *m, const char *hierarchy, const char *file, const char *value, struct failure *f);
int cgroups_join(struct monitor *m, pid_t pid, struct failure *f); /* the v1 ones */
void cgroups_remove(struct monitor *m);
int cgroups_freeze(struct monitor *m, bool freeze, struct failure *f);
void cgroups_kill(struct monitor *m);
/* Calls `visit` with each process of the instance; stops when it returns non-zero. */
int cgroups_each(struct monitor *m, int (*visit)(pid_t pid, void *data), void *data);

/* child.c */
struct child {
	struct monitor *m;
	int from_parent, to_parent; /* bytes: 'm' maps are written, 'n' namespaces made, 'g' go */
	int report;                 /* close-on-exec: struct failure, or end of file when init runs */
	int slave;                  /* of the console, received late: -1 until then */
};
_Noreturn void child_main(struct child *c);

/* devices.c */
int device_attach(struct monitor *m, const struct ctl_device *d, int node, struct failure *f);
int device_detach(struct monitor *m, const char *name, int policy, struct ctl_holder *holders, int *count,
		  struct failure *f);

/* fence.c: refuses the use of descriptors of that device that are open, or no longer. */
void fence_number(struct monitor *m, const struct ctl_device *d, bool closed);

/* mend.c */
int mend_filter(struct monitor *m, struct failure *f);
int mend_node(struct monitor *m, const char *name, const char *path, int source, struct failure *f);

/* holders.c: fills at most CTL_HOLDERS_MAX, returns how many there are. */
int holders_find(struct monitor *m, const struct lease *lease, struct ctl_holder *holders);

/* control.c */
int control_listen(struct monitor *m, struct failure *f);
void control_accept(struct monitor *m);
void control_serve(struct monitor *m, struct client *c);
void control_end(struct monitor *m); /* answers those who wait for the end */

/* monitor.c */
_Noreturn void monitor_run(struct monitor *m);
int64_t now_ms(void);
int monitor_signal(const struct monitor *m, int signal); /* to init */
