/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Leases of what comes while the instance runs, as ctrmgr/backend/leases.py keeps them: empty files `ID MODE INSTANCE
 * DEVICE` in one folder of the run directory. The monitor never waits: whoever has the folder may be waiting for it. */
#include "flat.h"
#include "monitor.h"
#include "names.h"

#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>

#define FOLDER    "../.leases"
#define UNLIMITED UINT32_MAX
#define ID_MAX    110 /* bytes of an id in a file's name: the last ones */
#define KEEPS     "keeps:"
#define TRIES     100

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
	struct names names = NAMES(folder);
	const struct dirent64 *entry;
	struct lease l;

	lseek(folder, 0, SEEK_SET);
	while ((entry = names_next(&names)))
		if (parse(entry->d_name, &l))
			visit(q, entry->d_name, &l);
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
	if (!meet(l->id, q->own.id) || is_ours(q, l) ||
	    (!is_locked(FD_RUN, l->instance, "/state") && !is_locked(FD_INSTANCE, l->instance, "")))
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

static int open_folder(void)
{
	if (mkdirat(FD_RUN, FOLDER, 0700) && errno != EEXIST)
		return -1;
	return openat(FD_RUN, FOLDER, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
}

/* The caller has locked the folder. */
static int take(struct monitor *m, int folder, const char *id, const char *device, const char *mode)
{
	struct question q;
	const char *file = ask_for(m, id, device, mode, &q);
	OWNED int taken = -1;

	if (!file)
		return -1;
	q.most = most_of(q.own.mode);
	each(folder, count_other, &q);
	if (q.others >= q.most)
		return -1;
	taken = openat(folder, file, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	return taken < 0 ? -1 : 0;
}

int lease_take_id(struct monitor *m, const char *id, const char *device, const char *mode)
{
	OWNED int folder = open_folder();

	return folder < 0 || flock(folder, LOCK_EX | LOCK_NB) ? -1
							      : take(m, folder, id, device, mode ? mode : "shared");
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

/* Amounts of memory that are kept do not move. */
static void remove_device(struct question *q, const char *file, const struct lease *l)
{
	if (is_ours(q, l) && strncmp(l->mode, KEEPS, strlen(KEEPS)))
		unlinkat(q->folder, file, 0);
}

/* An id of the plan's as it stands in a file's name; "": of a node that is not there. */
static const char *name_of(const char *id, char text[3 * CTL_PATH_MAX])
{
	char number[32];
	struct stat s;
	int used = 0;

	if (!strncmp(id, "node:", 5)) {
		if (stat(id + 5, &s))
			return "";
		snprintf(number, sizeof(number), "%s:%u:%u", S_ISBLK(s.st_mode) ? "block" : "char", major(s.st_rdev),
			 minor(s.st_rdev));
		id = number;
	}
	for (; *id && used < 3 * CTL_PATH_MAX - 4; id++)
		used += snprintf(text + used, 4, strchr("%/ ", *id) ? "%%%02X" : "%c", (unsigned char)*id);
	text += used > ID_MAX ? used - ID_MAX : 0;
	while ((*text & 0xc0) == 0x80)
		text++; /* the rest of a letter */
	return text;
}

static bool has_rule(const struct plan *p, const char *device)
{
	for (size_t i = 0; i < p->rules; i++)
		if (!strcmp(p->rule[i].name, device))
			return true;
	return false;
}

static int take_planned(struct monitor *m, int folder, char *text, struct failure *f)
{
	char *field[PLAN_FIELDS], *cursor = text, encoded[3 * CTL_PATH_MAX];
	int count;

	while ((count = flat_row(&cursor, field, PLAN_FIELDS)) > 0) {
		const char *id;

		if (count != 4 || strcmp(field[0], "lease") || !has_rule(&m->plan, field[1]) ||
		    !strncmp(field[3], KEEPS, strlen(KEEPS)))
			continue;
		id = name_of(field[2], encoded);
		errno = EBUSY;
		if (*id && take(m, folder, id, field[1], field[3]))
			return fail(f, "take the leases", "device `%.64s`: others have `%.64s`", field[1], field[2]);
	}
	return 0;
}

int leases_again(struct monitor *m, struct failure *f)
{
	OWNED int folder = m->plan.rules ? open_folder() : -1;
	struct question q;
	int failed = -1;
	char *text;

	if (!m->plan.rules)
		return 0;
	for (int tries = 0; flock(folder, LOCK_EX | LOCK_NB); tries++) {
		if (errno != EWOULDBLOCK || tries == TRIES)
			return fail(f, "take the leases", "somebody is at them");
		nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
	}
	for (size_t i = 0; i < m->plan.rules; i++)
		if (ask_for(m, "any", m->plan.rule[i].name, "any", &q)) {
			q.folder = folder;
			each(folder, remove_device, &q);
		}
	text = mmap(NULL, m->text_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (text != MAP_FAILED && pread(FD_PLAN, text, m->text_size - 1, 0) >= 0 && flat_counted(text))
		failed = take_planned(m, folder, text, f);
	else
		fail(f, "take the leases", "the plan");
	if (text != MAP_FAILED)
		munmap(text, m->text_size);
	return failed;
}
