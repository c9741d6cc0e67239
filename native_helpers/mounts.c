/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * What a device mounts: files and directories of the host's, and file systems of its own. It stays detached, where
 * nobody sees it, until parts.c puts it in its place. */
#include "monitor.h"
#include "start.h"

bool part_is_mount(const struct part *p)
{
	return p->device.type == CTL_BIND || p->device.type == CTL_FILESYSTEM;
}

/* What a client sends of a mount is a file that it has open in the host's mount namespace; of it we need a mount. */
int mount_clone(struct monitor *m, uint32_t access, int source, struct failure *f)
{
	struct priv_clone request = {
		.writable = access & CTL_WRITE, .executable = access & CTL_EXEC, .recursive = access & CTL_RECURSIVE};
	OWNED int own = openat(m->proc, "self/ns/mnt", O_RDONLY | O_CLOEXEC);
	int mount = -1;

	if (own < 0)
		return fail(f, "copy the mount", "our own namespace");
	return PRIV_CALL(PRIV_CLONE, &request, &mount, f, source, m->host_mounts, own) ? -1 : mount;
}

int mount_filesystem(struct monitor *m, const char *const words[3], uint32_t access, int source, struct failure *f)
{
	struct priv_filesystem request = {.writable = access & CTL_WRITE,
					  .executable = access & CTL_EXEC,
					  .uid = m->root_uid,
					  .gid = m->root_gid};
	const char *slash = strrchr(words[2], '/');
	int mount = -1;

	snprintf(request.type, sizeof(request.type), "%s", words[0]);
	snprintf(request.data, sizeof(request.data), "%s", words[1]);
	snprintf(request.name, sizeof(request.name), "%.63s", slash ? slash + 1 : words[2]);
	return priv_call(PRIV_FILESYSTEM, &request, sizeof(request), &source, source >= 0, &mount, f) ? -1 : mount;
}

int mount_shift(struct monitor *m, uint32_t access, int mount, struct failure *f)
{
	struct priv_shift request = {.recursive = access & CTL_RECURSIVE};
	OWNED int namespace = -1;

	if (!(access & CTL_SHIFT))
		return 0;
	namespace = start_namespace(m, "user");
	if (namespace < 0)
		return fail(f, "shift the ids of the mount", "init is gone");
	return PRIV_CALL(PRIV_SHIFT, &request, NULL, f, mount, namespace);
}

void mount_end(struct monitor *m)
{
	struct failure ignored;

	for (size_t i = m->used; i--;)
		if (m->part[i].state >= PART_HELD && m->part[i].device.type == CTL_FILESYSTEM) {
			part_withdraw(m, &m->part[i], &ignored);
			part_free(&m->part[i]);
		}
}
