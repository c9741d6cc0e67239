/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Groups of resctrl: classes of cache and memory bandwidth, and what is monitored in one of them. */
#include "priv.h"

#include <dirent.h>
#include <linux/magic.h>
#include <sys/stat.h>

static bool is_resctrl(int fd)
{
	return priv_is_on(fd, RDTGROUP_SUPER_MAGIC);
}

static bool plain_name(const char *name, size_t size)
{
	return plain_path(name, size) && !strchr(name, '/') && !strchr(name, '\n');
}

int priv_group_create(const void *request, const int in[], int count, int out[], struct failure *f)
{
	const struct priv_group_create *r = request;

	(void)count;
	if (!is_resctrl(in[0]) || !plain_name(r->name, sizeof(r->name)))
		return fail(f, "make the class", "not a name in resctrl");
	if (mkdirat(in[0], r->name, 0755))
		return fail(f, "make the class", "`%.200s`", r->name);
	out[0] = openat(in[0], r->name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	return out[0] < 0 ? fail(f, "make the class", "`%.200s`", r->name) : 0;
}

int priv_group_set(const void *request, const int in[], int count, int out[], struct failure *f)
{
	const struct priv_group_set *r = request;
	char text[sizeof(r->line) + 1];

	(void)count, (void)out;
	if (!is_resctrl(in[0]) || !memchr(r->line, 0, sizeof(r->line)) || !strchr(r->line, ':') ||
	    strchr(r->line, '\n'))
		return fail(f, "set the class", "not a line of schemata");
	snprintf(text, sizeof(text), "%s\n", r->line);
	return write_at(in[0], "schemata", text) ? fail(f, "set the class", "`%.200s`", r->line) : 0;
}

/* Each thread by itself, as resctrl counts them; those that come later have what their parents have. cgroup2 has the
 * list in `cgroup.threads`, v1 in `tasks`. One that is gone meanwhile needs none. */
static int join_listed(int group, int cgroup)
{
	int tid, failed = 0, fd = openat(cgroup, "cgroup.threads", O_RDONLY | O_CLOEXEC);
	FILE *file;
	char text[12];

	if (fd < 0)
		fd = openat(cgroup, "tasks", O_RDONLY | O_CLOEXEC);
	file = fd < 0 ? NULL : fdopen(fd, "re");
	if (!file) {
		close_fd(&fd);
		return -1;
	}
	while (!failed && fscanf(file, "%d", &tid) == 1) {
		snprintf(text, sizeof(text), "%d", tid);
		/* 0 is one that we cannot see, and would be ourselves */
		failed = tid > 0 && write_at(group, "tasks", text) && errno != ESRCH;
	}
	fclose(file);
	return failed ? -1 : 0;
}

static int join(int group, int cgroup, int depth)
{
	int fd = openat(cgroup, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *list = fd < 0 ? NULL : fdopendir(fd);
	int failed = join_listed(group, cgroup);
	struct dirent *entry;

	if (!list)
		close_fd(&fd);
	while (list && !failed && depth < CGROUP_DEPTH && (entry = readdir(list)))
		if (entry->d_type == DT_DIR && entry->d_name[0] != '.') {
			OWNED int below = openat(fd, entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

			/* cgroups come and go */
			failed = below >= 0 && join(group, below, depth + 1) && errno != ENODEV && errno != ENOENT;
		}
	if (list)
		closedir(list);
	return failed;
}

int priv_group_join(const void *request, const int in[], int count, int out[], struct failure *f)
{
	const struct priv_group_join *r = request;

	(void)count, (void)out;
	if (!is_resctrl(in[0]))
		return fail(f, "join the class", "not a group of resctrl");
	errno = EINVAL;
	if (r->flags || !priv_is_cgroup(in[1]))
		return fail(f, "join the class", "not a cgroup");
	return join(in[0], in[1], 0) ? fail(f, "join the class", "not all tasks of the instance") : 0;
}

int priv_group_remove(const void *request, const int in[], int count, int out[], struct failure *f)
{
	const struct priv_group_remove *r = request;

	(void)count, (void)out;
	if (!is_resctrl(in[0]) || !plain_name(r->name, sizeof(r->name)))
		return fail(f, "remove the class", "not a name in resctrl");
	return unlinkat(in[0], r->name, AT_REMOVEDIR) && errno != ENOENT
		       ? fail(f, "remove the class", "`%.200s`", r->name)
		       : 0;
}
