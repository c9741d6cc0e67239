/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Where the instance's cgroups are: one in cgroup2, and one in each v1 hierarchy that a limit needs. */
#include "monitor.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>

#define DEPTH "cgroup.max.depth"

/* Whether `name` is one of the comma-separated words of `list`. */
static bool listed(const char *list, const char *name)
{
	size_t length = strlen(name);

	for (const char *at = list; length && (at = strstr(at, name)); at += length)
		if ((at == list || at[-1] == ',') && (!at[length] || at[length] == ','))
			return true;
	return false;
}

/* cgroup2 hands controllers down by name, from the root on. One that is missing shows when its file is written. */
static void hand_down(const struct monitor *m, int dir)
{
	for (size_t i = 0; i < m->plan.files; i++) {
		struct priv_cgroup_write request = {.file = "cgroup.subtree_control"};
		const char *file = m->plan.file[i].file;
		struct failure ignored;

		snprintf(request.value, sizeof(request.value), "+%.*s", (int)strcspn(file, "."), file);
		if (!strcmp(m->plan.file[i].hierarchy, "unified") && strncmp(file, "cgroup.", 7))
			PRIV_CALL(PRIV_CGROUP_WRITE, &request, NULL, &ignored, dir);
	}
}

/* The same for a controller that a running instance had no limit of: down from the nearest cgroup that has it. */
static int hand_down_late(int dir, const char *file, int depth)
{
	struct priv_cgroup_write request = {.file = "cgroup.subtree_control"};
	struct failure ignored;
	OWNED int up = -1;

	snprintf(request.value, sizeof(request.value), "+%.*s", (int)strcspn(file, "."), file);
	if (!PRIV_CALL(PRIV_CGROUP_WRITE, &request, NULL, &ignored, dir))
		return 0;
	up = depth ? openat(dir, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
	if (up < 0 || hand_down_late(up, file, depth - 1))
		return -1;
	return PRIV_CALL(PRIV_CGROUP_WRITE, &request, NULL, &ignored, dir);
}

/* Opens (and makes) the parent of the instance's cgroup below the mount point. */
static int open_parent(const struct monitor *m, int mount, bool unified, struct failure *f)
{
	OWNED int dir = fcntl(mount, F_DUPFD_CLOEXEC, 3);
	char path[256], *name = path, *slash;

	snprintf(path, sizeof(path), "%s", m->plan.cgroup);
	if (unified)
		hand_down(m, mount);
	for (; dir >= 0 && (slash = strchr(name, '/')); name = slash + 1) {
		struct priv_cgroup_create request = {0};
		int next;

		*slash = '\0';
		snprintf(request.name, sizeof(request.name), "%.63s", name);
		if (PRIV_CALL(PRIV_CGROUP_CREATE, &request, &next, f, dir))
			return -1;
		close_fd(&dir);
		dir = next;
		if (unified)
			hand_down(m, dir);
	}
	return take_fd(&dir);
}

static const char *leaf(const struct monitor *m)
{
	const char *slash = strrchr(m->plan.cgroup, '/');

	return slash ? slash + 1 : m->plan.cgroup;
}

static bool wanted(const struct monitor *m, const char *controllers)
{
	char list[64];

	for (size_t i = 0; i < m->plan.files; i++) {
		snprintf(list, sizeof(list), "%s", m->plan.file[i].hierarchy);
		if (listed(controllers, list))
			return true;
	}
	return false;
}

static int add(struct monitor *m, const char *name, const char *mount_point, struct failure *f)
{
	struct hierarchy *h = &m->hierarchy[m->hierarchies];
	OWNED int mount = open(mount_point, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (mount < 0 || m->hierarchies == HIERARCHIES)
		return fail(f, "find the cgroups", "`%s`", mount_point);
	*h = (struct hierarchy){.parent = open_parent(m, mount, !strcmp(name, "unified"), f), .dir = -1};
	if (h->parent < 0)
		return -1;
	snprintf(h->name, sizeof(h->name), "%s", name);
	m->hierarchies++;
	return 0;
}

/* One line of mountinfo: mount point is field 5, the type follows " - ", super options come last. */
static int consider(struct monitor *m, char *line, bool unified, struct failure *f)
{
	char *rest = strstr(line, " - "), *type, *point = NULL, controllers[64] = "";

	if (!rest)
		return 0;
	*rest = '\0';
	rest += 3;
	type = strsep(&rest, " ");
	strsep(&rest, " ");
	for (int i = 0; i < 5; i++)
		point = strsep(&line, " ");
	if (!point || !rest)
		return 0;
	if (unified)
		return !strcmp(type, "cgroup2") && !m->hierarchies ? add(m, "unified", point, f) : 0;
	if (strcmp(type, "cgroup"))
		return 0;
	for (char *word = strtok(rest, ","); word; word = strtok(NULL, ","))
		if (strcmp(word, "rw") && strcmp(word, "ro") && strncmp(word, "name=", 5) &&
		    strlen(controllers) + strlen(word) + 2 < sizeof(controllers)) {
			strcat(controllers, controllers[0] ? "," : "");
			strcat(controllers, word);
		}
	if (wanted(m, controllers) || (m->filter_v1 && listed(controllers, "devices")))
		return add(m, controllers, point, f);
	return 0;
}

static int scan(struct monitor *m, bool unified, struct failure *f)
{
	FILE *file = fopen("/proc/self/mountinfo", "re");
	char *line = NULL; /* of any length: users can mount, too, wherever they like */
	size_t size = 0;
	int failed = 0;

	if (!file)
		return fail(f, "find the cgroups", "`/proc/self/mountinfo`");
	while (!failed && getline(&line, &size, file) > 0) {
		line[strcspn(line, "\n")] = '\0';
		failed = consider(m, line, unified, f);
	}
	free(line);
	fclose(file);
	return failed;
}

int cgroups_find(struct monitor *m, struct failure *f)
{
	if (scan(m, true, f))
		return -1;
	m->filter_v1 = !m->hierarchies;
	if ((m->filter_v1 || m->plan.files) && scan(m, false, f))
		return -1;
	errno = ENOSYS;
	return m->hierarchies ? 0 : fail(f, "find the cgroups", "none is mounted");
}

static struct hierarchy *find(struct monitor *m, const char *name)
{
	for (size_t i = 0; i < m->hierarchies; i++)
		if (listed(m->hierarchy[i].name, name))
			return &m->hierarchy[i];
	return NULL;
}

static int move_into(pid_t pid, void *dir)
{
	char text[12];

	snprintf(text, sizeof(text), "%d", pid);
	return write_at(*(int *)dir, "cgroup.procs", text) && errno != ESRCH ? -1 : 0;
}

static int move_members(struct monitor *m, void *dir, struct failure *f)
{
	return cgroups_each(m, move_into, dir) ? fail(f, "join a cgroup", "the kernel does not move a process into it")
					       : 0;
}

/* All processes into a cgroup of a v1 hierarchy: stopped meanwhile, so that none is forked behind. */
static int move_all(struct monitor *m, int *dir, struct failure *f)
{
	bool was = cgroups_frozen(m);
	int failed = was ? 0 : cgroups_freeze(m, true, f), error;
	struct failure ignored;

	failed = failed || members_inside(m, move_members, dir, f) ? -1 : 0;
	error = f->error;
	if (!was)
		cgroups_freeze(m, false, &ignored);
	errno = error;
	return failed;
}

/* A v1 hierarchy that a running instance had no limit of, at its mount point: our own /proc and /sys show none. Memory
 * that is in use would stay charged to the cgroup that it was taken in, where no limit of ours counts it. */
static int join_late(struct monitor *m, const char *name, int mount, struct failure *f)
{
	struct hierarchy h = {.parent = -1, .dir = -1};
	struct priv_cgroup_create create = {0};
	struct priv_cgroup_remove remove = {0};
	struct failure ignored;

	snprintf(h.name, sizeof(h.name), "%s", name);
	snprintf(create.name, sizeof(create.name), "%s", leaf(m));
	snprintf(remove.name, sizeof(remove.name), "%s", leaf(m));
	errno = ENOENT;
	if (mount < 0 || !*name || m->hierarchies == HIERARCHIES)
		return fail(f, "set a limit", "no cgroup hierarchy `%s` is mounted", name);
	if (!strcmp(name, "memory"))
		return fail(f, "join a cgroup", "memory that is in use already would not be counted");
	h.parent = open_parent(m, mount, false, f);
	if (h.parent >= 0 && !PRIV_CALL(PRIV_CGROUP_CREATE, &create, &h.dir, f, h.parent)) {
		if (!move_all(m, &h.dir, f)) {
			m->hierarchy[m->hierarchies++] = h;
			return 0;
		}
		/* removing it would kill who is in it */
		if (!move_all(m, &h.parent, &ignored))
			PRIV_CALL(PRIV_CGROUP_REMOVE, &remove, NULL, &ignored, h.parent);
	}
	close_fd(&h.dir);
	close_fd(&h.parent);
	f->error = ENOENT; /* not joined, as far as the asker must know */
	return -1;
}

int cgroups_limit(struct monitor *m, const char *hierarchy, const char *file, const char *value, int mount,
		  struct failure *f)
{
	struct priv_cgroup_write write = {0};
	struct hierarchy *h;

	if (!find(m, hierarchy) && join_late(m, hierarchy, mount, f))
		return -1;
	h = find(m, hierarchy);
	snprintf(write.file, sizeof(write.file), "%s", file);
	if (!strcmp(file, DEPTH) && (!strcmp(value, "max") || strtoul(value, NULL, 10) > CGROUP_DEPTH))
		snprintf(write.value, sizeof(write.value), "%d", CGROUP_DEPTH);
	else
		snprintf(write.value, sizeof(write.value), "%s", value);
	if (!strcmp(h->name, "unified") && faccessat(h->dir, file, F_OK, 0))
		hand_down_late(h->parent, file, 8);
	if (PRIV_CALL(PRIV_CGROUP_WRITE, &write, NULL, f, h->dir))
		return -1;
	guarantee_changed(h->parent, file);
	return 0;
}

int cgroups_create(struct monitor *m, struct failure *f)
{
	struct priv_cgroup_create request = {0};
	struct priv_program program = {.v1 = m->filter_v1};
	struct hierarchy *h;

	snprintf(request.name, sizeof(request.name), "%s", leaf(m));
	for (size_t i = 0; i < m->hierarchies; i++) {
		bool unified = !strcmp(m->hierarchy[i].name, "unified");

		request.uid = unified ? m->root_uid : 0;
		request.gid = unified ? m->root_gid : 0;
		if (PRIV_CALL(PRIV_CGROUP_CREATE, &request, &m->hierarchy[i].dir, f, m->hierarchy[i].parent))
			return -1;
		if (unified && cgroups_limit(m, "unified", DEPTH, "max", -1, f))
			return -1;
	}
	for (size_t i = 0; i < m->plan.files; i++)
		if (cgroups_limit(m, m->plan.file[i].hierarchy, m->plan.file[i].file, m->plan.file[i].value, -1, f))
			return -1;
	h = find(m, m->filter_v1 ? "devices" : "unified");
	errno = ENOSYS;
	if (!h)
		return fail(f, "filter devices", "neither cgroup2 nor the v1 `devices` controller is mounted");
	return PRIV_CALL(PRIV_PROGRAM, &program, &m->filter, f, h->dir);
}

int cgroups_join(struct monitor *m, pid_t pid, struct failure *f)
{
	char text[12];

	snprintf(text, sizeof(text), "%d", pid);
	for (size_t i = 0; i < m->hierarchies; i++)
		if (strcmp(m->hierarchy[i].name, "unified") && write_at(m->hierarchy[i].dir, "cgroup.procs", text))
			return fail(f, "join the cgroup", "`%s`", m->hierarchy[i].name);
	return 0;
}

void cgroups_remove(struct monitor *m)
{
	struct priv_cgroup_remove request = {0};
	struct failure ignored;

	snprintf(request.name, sizeof(request.name), "%s", leaf(m));
	for (size_t i = 0; i < m->hierarchies; i++) {
		close_fd(&m->hierarchy[i].dir);
		PRIV_CALL(PRIV_CGROUP_REMOVE, &request, NULL, &ignored, m->hierarchy[i].parent);
		guarantee_gone(m->hierarchy[i].parent);
	}
}

bool cgroups_frozen(const struct monitor *m)
{
	char events[256];

	return read_at(m->hierarchy[0].dir, "cgroup.events", events, sizeof(events)) > 0 && strstr(events, "frozen 1");
}

/* cgroup2 freezes by itself; `frozen 1` comes when the last process has stopped. */
int cgroups_freeze(struct monitor *m, bool freeze, struct failure *f)
{
	struct timespec pause = {.tv_nsec = 50000};
	char events[256];

	errno = ENOSYS;
	if (strcmp(m->hierarchy[0].name, "unified"))
		return fail(f, "freeze", "there is no cgroup2");
	if (write_at(m->hierarchy[0].dir, "cgroup.freeze", freeze ? "1" : "0"))
		return fail(f, freeze ? "freeze" : "thaw", "cgroup.freeze");
	for (int tries = 0; tries < 200; tries++) {
		if (read_at(m->hierarchy[0].dir, "cgroup.events", events, sizeof(events)) > 0 &&
		    strstr(events, freeze ? "frozen 1" : "frozen 0")) {
			state_write(m, freeze);
			return 0;
		}
		nanosleep(&pause, NULL);
		if (pause.tv_nsec < 5000000)
			pause.tv_nsec *= 2;
	}
	if (freeze)
		write_at(m->hierarchy[0].dir, "cgroup.freeze", "0");
	errno = ETIMEDOUT;
	return fail(f, freeze ? "freeze" : "thaw", "a process does not stop");
}
