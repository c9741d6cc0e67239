/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * ctrmgr-exec: a command in a running instance. The parent (exec.c) stays outside, forwards
 * signals and, with a terminal, bytes (pty.c); the child (enter.c) goes in and becomes the command. */
#pragma once
#include "confine.h"

#include <limits.h>
#include <signal.h>
#include <sys/types.h>

/* Exit codes of our own: the error tree's, and what shells say about commands. */
enum {
	EXIT_SPEC = 2,
	EXIT_NOT_FOUND = 3,
	EXIT_CONFLICT = 4,
	EXIT_HOST = 5,
	EXIT_HELPER = 7,
	EXIT_NOT_EXECUTABLE = 126,
	EXIT_NO_COMMAND = 127,
	EXIT_SIGNAL = 128,
};

struct options {
	const char *control; /* path of the monitor's socket, or number of a connected descriptor */
	const char *user, *group, *cwd;
	char **env; /* K=V, or K for the caller's value */
	size_t env_count;
	int tty; /* 1, 0, or -1: if stdin and stdout are terminals */
	bool shell;
	int program;    /* instead of a file of the instance's, or -1 */
	char **command; /* NULL-terminated */
};

#define PROCS_MAX    18
#define PLAN_ENV_MAX 512
#define GROUPS_MAX   64
#define ENV_SIZE_MAX (1 << 17)

/* What the monitor and the plan say about the instance. Descriptors are -1 when absent. */
struct instance {
	int pidfd, cgroup, plan;
	int procs[PROCS_MAX]; /* v1 cgroup.procs and resctrl's tasks, open for writing */
	size_t procs_count;
	int again;  /* the monitor, where a class of cache and memory bandwidth may come: see join_renew(), or -1 */
	char *text; /* the plan; the strings below point into it */
	char *env[PLAN_ENV_MAX];
	size_t env_count;
	gid_t group[GROUPS_MAX]; /* of its devices: besides the user's own */
	size_t groups;
	char *variables; /* of its devices, as they are attached now: KEY=VALUE, and =GID, each ended */
	size_t variables_size;
	struct confinement confinement;
};

/* The child to its parent: the pty's master (as a descriptor with NOTE_PTY), or why it failed.
 * No note and end of file: the command runs. */
enum note_kind { NOTE_PTY = 1, NOTE_FAILURE = 2 };
struct note {
	int kind;
	int code;  /* exit code */
	int error; /* errno or 0 */
	char text[512];
};

struct user {
	uid_t uid;
	gid_t gid;
	gid_t groups[NGROUPS_MAX > 256 ? 256 : NGROUPS_MAX];
	size_t group_count;
	char name[64], home[256], shell[256];
};

/* enter.c: in the child; never returns. */
_Noreturn void enter(const struct options *o, struct instance *i, bool tty, int channel, int proc,
		     const sigset_t *mask);

/* identity.c: looks up `user` and `group` (names or numbers; NULL: root) in /etc/passwd and /etc/group
 * of the current root. NULL, or what could not be found ("user", "group"). */
const char *identify(const char *user, const char *group, struct user *out);
/* Numbers only, which need no file where they are given. */
const char *identify_owner(const char *user, const char *group, uid_t *uid, gid_t *gid);

/* pty.c */
/* In the instance, as its root: a pty of its devpts. Returns the master (and *slave) or -errno. */
int pty_open(int *slave);
/* Outside: makes the caller's terminal raw; it is restored by terminal_restore, also twice. */
void terminal_raw(void);
void terminal_restore(void);
void terminal_resize(int master);
/* Copies between stdin/stdout and the master until the child (a pidfd) has ended and its output is
 * complete. `signals` is a signalfd, each of whose signals is given to `on_signal`, which says if the child ended. */
void pty_relay(int master, int signals, bool (*on_signal)(int signals));
