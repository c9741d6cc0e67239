/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * What a start takes from the host while it still sees it: the plan, our own programs, layers, devices. */
#include "start.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>

#define PLAN_SIZE_MAX (1 << 20)

static int read_plan(struct monitor *m, struct failure *f)
{
	struct stat s;

	errno = EFBIG;
	if (fstat(FD_PLAN, &s) || s.st_size > PLAN_SIZE_MAX)
		return fail(f, "read the plan", "fstat");
	m->text_size = (size_t)s.st_size + 1;
	m->text = mmap(NULL, m->text_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (m->text == MAP_FAILED || pread(FD_PLAN, m->text, (size_t)s.st_size, 0) != s.st_size)
		return fail(f, "read the plan", "pread");
	return plan_parse(&m->plan, m->text, f);
}

/* Our own programs lie together, wherever that is. */
static int sibling(const char *name)
{
	char path[4096];
	ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 64);
	char *slash;

	if (length < 0)
		return -1;
	path[length] = '\0';
	slash = strrchr(path, '/');
	strcpy(slash + 1, name);
	return open(path, O_PATH | O_CLOEXEC);
}

/* What runs inside can be found in /proc there, and written by whoever has the id of its owner (CVE-2019-5736): all our
 * programs are as this one. */
static int check_owner(const struct monitor *m, struct failure *f)
{
	const struct plan *p = &m->plan;
	struct stat s;

	if (fstat(m->exe, &s))
		return fail(f, "look at myself", "fstat");
	errno = EPERM;
	if (s.st_mode & S_IWOTH || plan_has(p->uid, p->uids, s.st_uid) ||
	    (s.st_mode & S_IWGRP && plan_has(p->gid, p->gids, s.st_gid)))
		return fail(f, "check our own programs", "%u:%u, mode %o", s.st_uid, s.st_gid, s.st_mode & 07777);
	return 0;
}

int monitor_open(struct monitor *m, struct failure *f)
{
	int error;

	m->proc = priv_proc = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
	m->exe = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	m->host_mounts = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
	if (m->proc < 0 || m->exe < 0 || m->host_mounts < 0)
		return fail(f, "look at myself", "`/proc` is not mounted");
	if (read_plan(m, f))
		return -1;
	m->has_classes = !access("/sys/fs/resctrl", F_OK);
	m->root_uid = plan_map(m->plan.uid, m->plan.uids, 0);
	m->root_gid = plan_map(m->plan.gid, m->plan.gids, 0);
	m->dead_uid = plan_unmapped(m->plan.uid, m->plan.uids);
	m->dead_gid = plan_unmapped(m->plan.gid, m->plan.gids);
	errno = EINVAL;
	if (m->root_uid == UINT32_MAX || m->root_gid == UINT32_MAX)
		return fail(f, "map ids", "the plan gives the instance no root");
	if (m->plan.hooks && (m->hook_program = sibling("ctrmgr-hook")) < 0)
		return fail(f, "find our hooks", "`ctrmgr-hook` is not beside `ctrmgr-monitor`");
	if (!strcmp(m->plan.init, "builtin") && (m->init_program = sibling("ctrmgr-init")) < 0)
		return fail(f, "find our init", "`ctrmgr-init` is not beside `ctrmgr-monitor`");
	error = confine_load(&m->plan.confinement);
	errno = -error;
	if (error)
		return fail(f, "read the seccomp filter", "`%s`", m->plan.confinement.seccomp);
	return cgroups_find(m, f);
}

/* The instance's directory came as a descriptor of the starter's mount namespace, in which nothing can be cloned
 * from ours: it is opened again by its path, and must be the same. */
static int open_again(int fd)
{
	char link[32], path[4096];
	struct stat given, found;
	ssize_t length;
	int again;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	length = readlink(link, path, sizeof(path) - 1);
	if (length < 0)
		return -1;
	path[length] = '\0';
	again = open(path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	errno = ESTALE;
	if (again >= 0 &&
	    (fstat(fd, &given) || fstat(again, &found) || given.st_ino != found.st_ino || given.st_dev != found.st_dev))
		close_fd(&again);
	return again;
}

/* What was a device when it was configured may be anything now. */
static int check_device(const struct plan_device *d, int fd, struct failure *f)
{
	struct stat s;
	const char *what;

	if (fstat(fd, &s))
		return fail(f, "open the device", "device `%s`: `%s`", d->name, d->source);
	if ((d->block && S_ISBLK(s.st_mode)) || (!d->block && S_ISCHR(s.st_mode)))
		return 0;
	what = S_ISBLK(s.st_mode)   ? "a block device"
	       : S_ISCHR(s.st_mode) ? "a character device"
	       : S_ISDIR(s.st_mode) ? "a directory"
	       : S_ISREG(s.st_mode) ? "a regular file"
				    : "no device node";
	errno = ENODEV;
	return fail(f, "check the device", "device `%s`: `%s` is %s", d->name, d->source, what);
}

/* By what it is; a rule of one name only adds to what is there under it. */
static bool is_ruled(const struct plan *p, const char *name)
{
	for (size_t i = 0; i < p->rules; i++)
		if (!strcmp(p->rule[i].name, name) && strcmp(p->rule[i].word[0], "char") &&
		    strcmp(p->rule[i].word[0], "block") && strcmp(p->rule[i].word[0], "model"))
			return true;
	return false;
}

static int open_devices(struct start *s, struct failure *f)
{
	const struct plan *p = &s->m->plan;

	for (size_t i = 0; i < p->devices; i++) {
		if (is_ruled(p, p->device[i].name))
			continue; /* it may be another one by now: the rule finds those that fit */
		s->device[i] = open(p->device[i].source, O_PATH | O_CLOEXEC);
		if (s->device[i] < 0 && p->device[i].required)
			return fail(f, "open the device", "device `%s`: `%s`", p->device[i].name, p->device[i].source);
		if (s->device[i] >= 0 && check_device(&p->device[i], s->device[i], f))
			return -1;
	}
	return 0;
}

static int open_binds(struct start *s, struct failure *f)
{
	const struct plan *p = &s->m->plan;

	for (size_t i = 0; i < p->binds; i++) {
		const struct plan_bind *b = &p->bind[i];
		struct priv_clone request = {.writable = b->access & CTL_WRITE,
					     .executable = b->access & CTL_EXEC,
					     .recursive = b->access & CTL_RECURSIVE};
		OWNED int source = open(b->source, O_PATH | O_CLOEXEC);

		if (source < 0 && !b->required && errno == ENOENT)
			continue;
		if (source < 0)
			return fail(f, "open the device", "device `%s`: `%s`", b->name, b->source);
		if (PRIV_CALL(PRIV_CLONE, &request, &s->bind[i], f, source))
			return -1;
	}
	return 0;
}

static int open_filesystems(struct start *s, struct failure *f)
{
	const struct plan *p = &s->m->plan;

	for (size_t i = 0; i < p->filesystems; i++) {
		const struct plan_filesystem *x = &p->filesystem[i];
		const char *const words[] = {x->type, x->data, x->source};
		OWNED int source = -1;

		if (x->source[0] == '/' && (source = open(x->source, O_PATH | O_CLOEXEC)) < 0) {
			if (!x->required && errno == ENOENT)
				continue;
			return fail(f, "open the device", "device `%s`: `%s`", x->name, x->source);
		}
		s->filesystem[i] = mount_filesystem(s->m, words, x->access, source, f);
		if (s->filesystem[i] < 0)
			return -1;
	}
	return 0;
}

/* Whether at least one thing of the device's is there, if it has any. */
static bool is_there(const struct start *s, const char *name)
{
	const struct plan *p = &s->m->plan;
	bool has_any = false;

	for (size_t i = 0; i < p->devices; i++)
		if (!strcmp(p->device[i].name, name)) {
			has_any = true;
			if (s->device[i] >= 0)
				return true;
		}
	for (size_t i = 0; i < p->binds; i++)
		if (!strcmp(p->bind[i].name, name)) {
			has_any = true;
			if (s->bind[i] >= 0)
				return true;
		}
	for (size_t i = 0; i < p->filesystems; i++)
		if (!strcmp(p->filesystem[i].name, name)) {
			has_any = true;
			if (s->filesystem[i] >= 0)
				return true;
		}
	return !has_any;
}

/* What goes with an optional device that this host has not. */
static void forget_absent(const struct start *s, struct plan *p)
{
	for (size_t i = 0; i < p->device_envs; i++)
		if (!is_there(s, p->device_env[i].name))
			p->device_env[i].name = NULL;
	for (size_t i = 0; i < p->groups; i++)
		if (!is_there(s, p->group[i].name))
			p->group[i].name = NULL;
	for (size_t i = 0; i < p->hooks; i++)
		if (!is_there(s, p->hook[i].name))
			p->hook[i].name = NULL;
	for (size_t i = 0; i < p->classes; i++)
		if (!is_there(s, p->class[i].name))
			p->class[i].name = NULL;
}

void start_begin(struct start *s)
{
	for (size_t i = 0; i < PLAN_LAYERS; i++)
		s->layer[i] = -1;
	for (size_t i = 0; i < PLAN_DEVICES; i++)
		s->device[i] = -1;
	for (size_t i = 0; i < PLAN_BINDS; i++)
		s->bind[i] = -1;
	for (size_t i = 0; i < PLAN_DISKS; i++)
		s->filesystem[i] = -1;
}

void start_end(struct start *s)
{
	for (size_t i = 0; i < PLAN_LAYERS; i++)
		close_fd(&s->layer[i]);
	for (size_t i = 0; i < PLAN_DEVICES; i++)
		close_fd(&s->device[i]);
	for (size_t i = 0; i < PLAN_BINDS; i++)
		close_fd(&s->bind[i]);
	for (size_t i = 0; i < PLAN_DISKS; i++)
		close_fd(&s->filesystem[i]);
	close_fd(&s->own);
	close_fd(&s->pidns);
	close_fd(&s->sync);
	close_fd(&s->report);
}

int start_leave_host(struct start *s, struct failure *f)
{
	struct plan *p = &s->m->plan;

	if (check_owner(s->m, f))
		return -1;
	s->pidns = open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC);
	if (unshare(CLONE_NEWNS))
		return fail(f, "make the monitor's mount namespace", "unshare: mount namespaces");
	if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
		return fail(f, "make the monitor's mount namespace", "mount");
	s->own = open_again(FD_INSTANCE);
	if (s->own < 0)
		return fail(f, "open the instance's directory", "`%s`", p->name);
	for (size_t i = 0; i < p->layers; i++)
		if ((s->layer[i] = open(p->layer[i], O_PATH | O_DIRECTORY | O_CLOEXEC)) < 0)
			return fail(f, "open a layer", "`%s`", p->layer[i]);
	if (open_devices(s, f) || open_binds(s, f) || open_filesystems(s, f))
		return -1;
	if (p->classes && (s->m->resctrl = open(p->class[0].word[1], O_PATH | O_DIRECTORY | O_CLOEXEC)) < 0)
		return fail(f, "find resctrl", "`%s`", p->class[0].word[1]);
	forget_absent(s, p);
	return 0;
}
