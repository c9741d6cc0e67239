/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * What a process of an instance may not do: resource limits (and how likely it is killed when memory
 * runs out), capability bounding set, LSM label, no-new-privileges and seccomp. Init (the monitor's
 * child) and every command that enters later (ctrmgr-exec) go through these
 * same functions, so that a command never has more rights than init. */
#pragma once
#include <linux/filter.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

struct confinement {
	uint64_t capabilities; /* the bounding set that is kept, bit per capability */
	bool no_new_privs;
	const char *apparmor; /* profile name or NULL */
	const char *seccomp;  /* path of the raw BPF or NULL */
	struct sock_fprog filter;
	struct {
		unsigned resource;
		struct rlimit limit;
	} rlimits[RLIM_NLIMITS];
	size_t rlimit_count;
	bool adjusts_oom; /* else it has what whoever started it has */
	int oom_score_adj;
};

/* A plan without these rows keeps every capability: it says so itself by the mask. */
#define CONFINEMENT_NONE ((struct confinement){.capabilities = UINT64_MAX})

/* Takes one row of the plan (its key is field[0]).
 * Returns 1 if the row was about confinement, 0 if it was not, -EINVAL if it was and is wrong.
 * The strings are not copied: the plan's text must outlive `c`. */
int confine_row(struct confinement *c, char *const field[], size_t count);

/* Maps the seccomp filter. Call it while host paths still resolve. 0 or -errno. */
int confine_load(struct confinement *c);

/* Unmaps it, once every process that needs it has it. */
void confine_unload(struct confinement *c);

/* Sets the resource limits of `pid` (0: the caller). The caller must be in the initial user
 * namespace: only CAP_SYS_RESOURCE there may raise a hard limit. 0 or -errno. */
int confine_limits(const struct confinement *c, pid_t pid);

/* Writes its `oom_score_adj`, if it has one, of process `pid` ("self": the caller) below `proc`, an O_PATH descriptor
 * of the host's /proc. Lower than CAP_SYS_RESOURCE of the initial user namespace last set it takes that. 0 or -errno.
 */
int confine_oom(const struct confinement *c, int proc, const char *pid);

/* Gives the caller a new, empty session keyring, so that the instance does not possess the keys of
 * whoever typed the command. Before the user namespace is entered: there the quota is root's own
 * instead of 200 keys per user. 0 or -errno; a kernel without keyrings is fine. */
int confine_keyring(void);

/* The rest, in the last steps before exec, inside all namespaces, with full capabilities in the
 * instance's user namespace (thus before changing to an ordinary user).
 * `proc` is an O_PATH descriptor of a /proc that the instance cannot have over-mounted.
 * 0 or -errno; on failure *step says what was refused. */
int confine_inside(const struct confinement *c, int proc, const char **step);
