/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Cgroups and id maps. */
#include "priv.h"

#include <dirent.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>

bool priv_is_cgroup(int fd)
{
	return priv_is_on(fd, CGROUP2_SUPER_MAGIC) || priv_is_on(fd, CGROUP_SUPER_MAGIC);
}

static bool plain_name(const char *name, size_t size)
{
	return memchr(name, 0, size) && name[0] && !strchr(name, '/') && strcmp(name, ".") && strcmp(name, "..");
}

/* What the instance's root needs to run cgroups of its own (a systemd inside); the limits stay root's. */
static void delegate(int dir, uint32_t uid, uint32_t gid)
{
	static const char *const files[] = {"cgroup.procs", "cgroup.threads", "cgroup.subtree_control", "tasks"};

	if (fchown(dir, uid, gid))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(files); i++)
		(void)!fchownat(dir, files[i], uid, gid, AT_SYMLINK_NOFOLLOW);
}

/* A v1 cpuset without cpus and mems takes no process at all. */
static void inherit_cpuset(int parent, int dir)
{
	static const char *const files[] = {"cpuset.mems", "cpuset.cpus"};
	char value[256];

	for (size_t i = 0; i < ARRAY_SIZE(files); i++)
		if (read_at(dir, files[i], value, sizeof(value)) <= 1 &&
		    read_at(parent, files[i], value, sizeof(value)) > 0)
			(void)!write_at(dir, files[i], value);
}

int priv_cgroup_create(const void *request, const int in[], int count, int out[], struct failure *f)
{
	const struct priv_cgroup_create *r = request;

	(void)count;
	errno = EINVAL;
	if (!plain_name(r->name, sizeof(r->name)) || !priv_is_cgroup(in[0]) || r->uid == UINT32_MAX ||
	    r->gid == UINT32_MAX)
		return fail(f, "make the cgroup", "not a name in a cgroup");
	if (mkdirat(in[0], r->name, 0755) && errno != EEXIST)
		return fail(f, "make the cgroup", "`%s`", r->name);
	out[0] = openat(in[0], r->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (out[0] < 0)
		return fail(f, "open the cgroup", "`%s`", r->name);
	if (priv_is_on(out[0], CGROUP_SUPER_MAGIC))
		inherit_cpuset(in[0], out[0]);
	if (r->uid)
		delegate(out[0], r->uid, r->gid);
	return 0;
}

/* The files of controllers, and what limits a cgroup as such. Not those that move processes, stop or kill them: whoever
 * may write `cgroup.procs` can draw any process of the host into his cgroup. */
static bool writable(const char *file)
{
	static const char *const core[] = {"cgroup.subtree_control", "cgroup.max.depth", "cgroup.max.descendants"};
	static const char *const prefixes[] = {"cpu.",  "cpuset.",  "memory.", "pids.", "io.",  "blkio.",
					       "misc.", "hugetlb.", "rdma.",   "dmem.", "gpu.", "net_"};

	for (size_t i = 0; i < ARRAY_SIZE(core); i++)
		if (!strcmp(file, core[i]))
			return true;
	for (size_t i = 0; i < ARRAY_SIZE(prefixes); i++)
		if (!strncmp(file, prefixes[i], strlen(prefixes[i])))
			return true;
	return false;
}

int priv_cgroup_write(const void *request, const int in[], int count, int out[], struct failure *f)
{
	const struct priv_cgroup_write *r = request;

	(void)count, (void)out;
	errno = EINVAL;
	if (!plain_name(r->file, sizeof(r->file)) || !memchr(r->value, 0, sizeof(r->value)) || !writable(r->file) ||
	    !priv_is_cgroup(in[0]))
		return fail(f, "write a cgroup file", "`%.60s` is not one", r->file);
	if (write_at(in[0], r->file, r->value))
		return fail(f, "set a limit", "`%s` to `%s`", r->file, r->value);
	return 0;
}

static void kill_listed(int dir)
{
	OWNED int fd = openat(dir, "cgroup.procs", O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	char text[4096], *cursor = text;
	ssize_t length = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
	long pid;

	if (length <= 0)
		return;
	text[length] = '\0';
	while ((pid = strtol(cursor, &cursor, 10)) > 0)
		syscall(SYS_kill, (pid_t)pid, 9);
}

/* Removes `name` and all below it. EBUSY while killed processes are still on their way out. */
static int remove_tree(int parent, const char *name, int depth)
{
	OWNED int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	struct dirent *entry;
	DIR *dir;
	int copy;

	if (fd < 0)
		return errno == ENOENT ? 0 : -1;
	if (write_at(fd, "cgroup.kill", "1"))
		kill_listed(fd);
	if (!unlinkat(parent, name, AT_REMOVEDIR))
		return 0;
	copy = dup(fd);
	dir = copy < 0 ? NULL : fdopendir(copy);
	if (!dir) {
		close_fd(&copy);
		return -1;
	}
	while (depth < CGROUP_DEPTH && (entry = readdir(dir)))
		if (entry->d_type == DT_DIR && plain_name(entry->d_name, sizeof(entry->d_name)))
			remove_tree(fd, entry->d_name, depth + 1);
	closedir(dir);
	return unlinkat(parent, name, AT_REMOVEDIR) && errno != ENOENT ? -1 : 0;
}

int priv_cgroup_remove(const void *request, const int in[], int count, int out[], struct failure *f)
{
	const struct priv_cgroup_remove *r = request;
	struct timespec pause = {.tv_nsec = 50000};

	(void)count, (void)out;
	errno = EINVAL;
	if (!plain_name(r->name, sizeof(r->name)) || !priv_is_cgroup(in[0]))
		return fail(f, "remove the cgroup", "not a name in a cgroup");
	for (int tries = 0; tries < 400; tries++) {
		if (!remove_tree(in[0], r->name, 0))
			return 0;
		if (errno != EBUSY)
			break;
		nanosleep(&pause, NULL);
		if (pause.tv_nsec < 5000000)
			pause.tv_nsec *= 2;
	}
	return fail(f, "remove the cgroup", "`%s`", r->name);
}

static bool map_ok(const struct id_map *map, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		errno = EPERM; /* host root inside is what this program exists to avoid */
		if (map[i].outside == 0)
			return false;
		errno = EINVAL;
		if (!map[i].count || (uint64_t)map[i].outside + map[i].count > UINT32_MAX ||
		    (uint64_t)map[i].inside + map[i].count > UINT32_MAX)
			return false;
	}
	return true;
}

static int map_write(int process, const char *file, const struct id_map *map, uint32_t count)
{
	char text[PLAN_MAPS * 36]; /* three numbers a row */
	size_t used = 0;

	for (uint32_t i = 0; i < count; i++)
		used += (size_t)snprintf(text + used, sizeof(text) - used, "%u %u %u\n", map[i].inside, map[i].outside,
					 map[i].count);
	return write_at(process, file, text);
}

int priv_idmap(const void *request, const int in[], int count, int out[], struct failure *f)
{
	const struct priv_idmap *r = request;

	(void)count, (void)out;
	errno = EINVAL;
	if (!r->uids || !r->gids || r->uids > PLAN_MAPS || r->gids > PLAN_MAPS || !priv_is_on(in[0], PROC_SUPER_MAGIC))
		return fail(f, "map ids", "%u and %u rows", r->uids, r->gids);
	if (!map_ok(r->uid, r->uids))
		return fail(f, "map user ids", "%u rows", r->uids);
	if (!map_ok(r->gid, r->gids))
		return fail(f, "map group ids", "%u rows", r->gids);
	if (map_write(in[0], "uid_map", r->uid, r->uids))
		return fail(f, "map user ids", "%u rows", r->uids);
	if (map_write(in[0], "gid_map", r->gid, r->gids))
		return fail(f, "map group ids", "%u rows", r->gids);
	return 0;
}
