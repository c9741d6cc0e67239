/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Leases of what comes while the instance runs, as ctrmgr/backend/leases.py keeps them: empty files `ID MODE INSTANCE
 * DEVICE` in one folder of the run directory. The monitor never waits: whoever has the folder may be waiting for it. */
#include "monitor.h"

#include <dirent.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>

#define FOLDER    "../.leases"
#define UNLIMITED UINT32_MAX

struct lease {
	char file[NAME_MAX + 1]; /* the words, each ended */
	const char *id, *mode, *instance, *device;
};

struct question {
	struct monitor *m;
	struct lease own;
	int folder;
	unsigned others;
	uint32_t most; /* that may have it together */
};

static bool parse(const char *file, struct lease *l)
{
	const char **words[] = {&l->id, &l->mode, &l->instance, &l->device};
	char *rest = l->file;

	snprintf(l->file, sizeof(l->file), "%s", file);
	for (size_t i = 0; i < ARRAY_SIZE(words); i++) {
		*words[i] = rest;
		if (i + 1 < ARRAY_SIZE(words) && !strsep(&rest, " "))
			return false;
		if (!rest)
			return false;
	}
	return true;
}

static bool is_part_of(const char *id, const char *whole)
{
	size_t length = strlen(whole);

	return !strncmp(id, whole, length) && !strncmp(id + length, "%2F", 3);
}

/* The same hardware, or one is a part of the other. */
static bool meet(const char *one, const char *other)
{
	return !strcmp(one, other) || is_part_of(one, other) || is_part_of(other, one);
}

static void each(int folder, void (*visit)(struct question *, const char *file, const struct lease *),
		 struct question *q)
{
	char entries[2048];
	ssize_t size;

	while ((size = syscall(SYS_getdents64, folder, entries, sizeof(entries))) > 0)
		for (ssize_t at = 0; at < size;) {
			const struct dirent64 *entry = (const struct dirent64 *)(const void *)(entries + at);
			struct lease l;

			if (parse(entry->d_name, &l) && meet(l.id, q->own.id))
				visit(q, entry->d_name, &l);
			at += entry->d_reclen;
		}
}

static bool is_ours(const struct question *q, const struct lease *l)
{
	return !strcmp(l->instance, q->own.instance) && !strcmp(l->device, q->own.device);
}

static bool is_locked(int dir, const char *name, const char *below)
{
	char path[NAME_MAX + 16];
	OWNED int fd = -1;

	snprintf(path, sizeof(path), "../%s%s", name, below);
	fd = openat(dir, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	return fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) && errno == EWOULDBLOCK;
}

static uint32_t most_of(const char *mode)
{
	if (!strcmp(mode, "exclusive"))
		return 1;
	return strncmp(mode, "shared:", 7) ? UNLIMITED : (uint32_t)strtoul(mode + 7, NULL, 10);
}

/* One that neither runs nor is being started has left it. */
static void count_other(struct question *q, const char *file, const struct lease *l)
{
	(void)file;
	if (is_ours(q, l) || (!is_locked(FD_RUN, l->instance, "/state") && !is_locked(FD_INSTANCE, l->instance, "")))
		return;
	/* of other parts it only counts that nobody may have one beside it */
	if (strcmp(l->id, q->own.id) && strcmp(l->mode, "exclusive") && strcmp(q->own.mode, "exclusive"))
		return;
	q->others++;
	if (most_of(l->mode) < q->most)
		q->most = most_of(l->mode);
}

static void remove_ours(struct question *q, const char *file, const struct lease *l)
{
	if (is_ours(q, l) && !strcmp(l->id, q->own.id))
		unlinkat(q->folder, file, 0);
}

/* Returns the name of the file that it is. */
static const char *ask_for(struct monitor *m, const char *id, const char *device, const char *mode, struct question *q)
{
	static char file[2 * NAME_MAX];

	snprintf(file, sizeof(file), "%s %s %s %s", id, mode, m->plan.name, device);
	q->m = m;
	q->others = 0;
	return strlen(file) <= NAME_MAX && parse(file, &q->own) ? file : NULL;
}

int lease_take_id(struct monitor *m, const char *id, const char *device, const char *mode)
{
	struct question q;
	const char *file = ask_for(m, id, device, mode ? mode : "shared", &q);
	OWNED int folder = -1;
	OWNED int taken = -1;

	if (!file || (mkdirat(FD_RUN, FOLDER, 0700) && errno != EEXIST))
		return -1;
	folder = openat(FD_RUN, FOLDER, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	if (folder < 0 || flock(folder, LOCK_EX | LOCK_NB))
		return -1;
	q.most = most_of(q.own.mode);
	each(folder, count_other, &q);
	if (q.others >= q.most)
		return -1;
	taken = openat(folder, file, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	return taken < 0 ? -1 : 0;
}

void lease_return_id(struct monitor *m, const char *id, const char *device)
{
	struct question q;

	if (!ask_for(m, id, device, "any", &q))
		return;
	q.folder = openat(FD_RUN, FOLDER, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	if (q.folder >= 0)
		each(q.folder, remove_ours, &q);
	close_fd(&q.folder);
}

/* A node is known by its number. */
static void id_of(const struct ctl_device *d, char id[32])
{
	snprintf(id, 32, "%s:%u:%u", d->type == CTL_BLOCK ? "block" : "char", d->major, d->minor);
}

int lease_take(struct monitor *m, const struct ctl_device *d, const char *mode)
{
	char id[32];

	id_of(d, id);
	return lease_take_id(m, id, d->name, mode);
}

void lease_return(struct monitor *m, const struct ctl_device *d)
{
	char id[32];

	id_of(d, id);
	lease_return_id(m, id, d->name);
}
