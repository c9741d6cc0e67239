/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Kernel parameters that a namespace has of its own. */
#include "priv.h"

#include <linux/magic.h>
#include <linux/openat2.h>
#include <sys/vfs.h>

/* Those of network and IPC namespaces. In a network namespace other than the host's, the kernel shows no others below
 * net/; all others are one for the whole machine, or belong to a namespace that the caller is not in. */
static bool namespaced(const char *name)
{
	static const char *const prefixes[] = {"net/", "fs/mqueue/", "kernel/msg", "kernel/sem", "kernel/shm"};

	for (size_t i = 0; i < ARRAY_SIZE(prefixes); i++)
		if (!strncmp(name, prefixes[i], strlen(prefixes[i])))
			return true;
	return false;
}

/* 0, -1 with errno, or 1 when what is there is not the kernel's. */
static int set(int root, const char *path, const char *value)
{
	struct statfs s;
	size_t length = strlen(value);
	OWNED int fd = sys_openat2(root, path, O_WRONLY, RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS);

	if (fd < 0)
		return -1;
	if (fstatfs(fd, &s) || s.f_type != PROC_SUPER_MAGIC)
		return 1;
	return write(fd, value, length) == (ssize_t)length ? 0 : -1;
}

/* Since Linux 5.19 the parameters of an IPC namespace belong to its own root, and nobody else may write them; before,
 * to the host's. */
static int set_as_root_of_instance(const struct priv_sysctl *r, int root, const char *path)
{
	int failed = -1, saved;

	if (!setegid(r->gid) && !seteuid(r->uid))
		failed = set(root, path, r->value);
	saved = errno;
	if (seteuid(0) || setegid(0))
		_exit(1); /* never on as somebody else */
	errno = saved;
	return failed;
}

int priv_sysctl(const void *request, const int in[], int count, int out[], struct failure *f)
{
	const struct priv_sysctl *r = request;
	char path[sizeof(r->name) + 16];
	int failed;

	(void)count, (void)out;
	errno = EINVAL;
	if (!plain_path(r->name, sizeof(r->name)) || !memchr(r->value, 0, sizeof(r->value)) || !namespaced(r->name))
		return fail(f, "set a kernel parameter", "`%.60s` is not an instance's own", r->name);
	if (!priv_instance_ids(r->uid, r->gid))
		return fail(f, "set a kernel parameter", "a root that no instance has");
	snprintf(path, sizeof(path), "proc/sys/%s", r->name);
	failed = set(in[0], path, r->value);
	if (failed < 0 && errno == EACCES)
		failed = set_as_root_of_instance(r, in[0], path);
	if (failed > 0)
		errno = EINVAL;
	return failed ? fail(f, "set a kernel parameter", "`%.100s` to `%.100s`", r->name, r->value) : 0;
}
