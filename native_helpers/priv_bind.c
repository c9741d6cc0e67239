/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Files and directories of the host's in the instance: libraries that fit a driver, sockets, data. They are mounted in
 * the monitor's own mount namespace, from which they propagate into the instance's: what they are (read-only, no
 * set-id) is locked there. */
#include "priv.h"

#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/xattr.h>

/* The instance's symlinks lead about in the instance, and to no other mount. */
#define IN_ROOT (RESOLVE_IN_ROOT | RESOLVE_NO_XDEV | RESOLVE_NO_MAGICLINKS)
/* Below a directory that was just opened there are none. */
#define STRICT (RESOLVE_BENEATH | RESOLVE_NO_XDEV | RESOLVE_NO_SYMLINKS)

/* In the mount namespace of the source, which alone may be cloned from. */
static int clone_there(int namespace, int own, int source, unsigned flags)
{
	int mount, error;

	if (setns(namespace, CLONE_NEWNS))
		return -1;
	mount = sys_open_tree(source, "", flags);
	error = errno;
	/* Anywhere else we would hand out the host's files: better the end of the instance. */
	if (setns(own, CLONE_NEWNS))
		_exit(127);
	errno = error;
	return mount;
}

int priv_clone(const void *request, const int in[], int count, int out[], struct failure *f)
{
	const struct priv_clone *r = request;
	struct mount_attr attr = {.attr_set = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV |
					      (r->writable ? 0 : MOUNT_ATTR_RDONLY) |
					      (r->executable ? 0 : MOUNT_ATTR_NOEXEC),
				  .propagation = MS_PRIVATE};
	const unsigned below = r->recursive ? AT_RECURSIVE : 0;
	const unsigned flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH | below;
	OWNED int mount = -1;
	struct stat s;

	errno = EINVAL;
	if (count == 2 || fstat(in[0], &s) || (!S_ISDIR(s.st_mode) && !S_ISREG(s.st_mode) && !S_ISSOCK(s.st_mode)))
		return fail(f, "copy the mount", "its source is no file, directory or socket");
	mount = count == 1 ? sys_open_tree(in[0], "", flags) : clone_there(in[1], in[2], in[0], flags);
	if (mount < 0)
		return fail(f, "copy the mount", "open_tree: of its source");
	if (sys_mount_setattr(mount, "", AT_EMPTY_PATH | below, &attr))
		return fail(f, "copy the mount", "mount_setattr: of the copy");
	out[0] = take_fd(&mount);
	return 0;
}

/* What was made to mount on is known by this, also in a later run; the instance can neither set nor see it. */
#define MARK "trusted.ctrmgr"

/* As the instance's root would. Whether it was not there before. */
static bool make_directory(int dir, const char *name)
{
	OWNED int made = -1;

	if (mkdirat(dir, name, 0755))
		return false;
	made = sys_openat2(dir, name, O_RDONLY | O_DIRECTORY, STRICT);
	return made >= 0 && !fsetxattr(made, MARK, "1", 1, 0);
}

static bool make_file(int dir, const char *name)
{
	OWNED int made = openat(dir, name, O_CREAT | O_EXCL | O_WRONLY | O_NOFOLLOW | O_CLOEXEC, 0644);

	return made >= 0 && !fsetxattr(made, MARK, "1", 1, 0);
}

/* The directory in which `path` ends, whose last name is left in it; with `make`, what is missing is made. */
static int directory_of(int root, char *path, bool make)
{
	OWNED int dir = openat(root, ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
	char *name = path, *next;

	/* what is there, from one lookup: only so may a symlink lead upwards */
	for (char *end = strrchr(path, '/'); end; end = memrchr(path, '/', (size_t)(end - path))) {
		int found;

		*end = '\0';
		found = sys_openat2(root, path, O_PATH | O_DIRECTORY, IN_ROOT);
		*end = '/';
		if (found >= 0) {
			close_fd(&dir);
			dir = found;
			name = end + 1;
			break;
		}
		if (errno != ENOENT || !make)
			return -1;
	}
	for (; dir >= 0 && (next = strchr(name, '/')); name = next + 1) {
		int below;

		*next = '\0';
		make_directory(dir, name);
		below = sys_openat2(dir, name, O_PATH | O_DIRECTORY, STRICT);
		close_fd(&dir);
		dir = below;
	}
	memmove(path, name, strlen(name) + 1);
	return take_fd(&dir);
}

/* What to mount on, of the kind that the source is. */
static int target(int root, const char *wanted, bool directory)
{
	char name[PRIV_PATH];
	OWNED int dir = -1, found = -1;
	struct stat s;

	memcpy(name, wanted, sizeof(name));
	dir = directory_of(root, name, true);
	if (dir < 0)
		return -1;
	directory ? make_directory(dir, name) : make_file(dir, name);
	found = sys_openat2(dir, name, O_PATH, STRICT);
	if (found < 0 || fstat(found, &s))
		return -1;
	if (S_ISDIR(s.st_mode) != directory) {
		errno = directory ? ENOTDIR : EISDIR;
		return -1;
	}
	return take_fd(&found);
}

/* Removes what was made to mount on, if it is still empty. */
static bool remove_made(int dir, const char *name)
{
	OWNED int found = sys_openat2(dir, name, O_PATH, STRICT), open = -1;
	struct stat s;
	char value;

	if (found < 0 || fstat(found, &s) || (!S_ISDIR(s.st_mode) && (!S_ISREG(s.st_mode) || s.st_size)))
		return false;
	open = sys_openat2(dir, name, O_RDONLY | O_NONBLOCK | O_NOCTTY, STRICT);
	return open >= 0 && fgetxattr(open, MARK, &value, sizeof(value)) == sizeof(value) &&
	       !unlinkat(dir, name, S_ISDIR(s.st_mode) ? AT_REMOVEDIR : 0);
}

/* The place itself, and the directories above it. */
static void remove_target(int root, const char *wanted, uint32_t uid, uint32_t gid)
{
	char path[PRIV_PATH], name[PRIV_PATH], *slash;
	bool removed = true;

	memcpy(path, wanted, sizeof(path));
	priv_fs_ids(uid, gid);
	while (removed) {
		OWNED int dir = -1;

		memcpy(name, path, sizeof(name));
		dir = directory_of(root, name, false);
		removed = dir >= 0 && remove_made(dir, name);
		slash = strrchr(path, '/');
		if (!slash)
			break;
		*slash = '\0';
	}
	priv_fs_ids(0, 0);
}

int priv_bind(const void *request, const int in[], int count, int out[], struct failure *f)
{
	const struct priv_bind *r = request;
	OWNED int point = -1;
	struct stat root, s;

	(void)count, (void)out;
	errno = EINVAL;
	if (!plain_path(r->path, sizeof(r->path)) || fstat(in[0], &root) || !S_ISDIR(root.st_mode) || fstat(in[1], &s))
		return fail(f, "mount into the instance", "not a place below its root");
	if (!priv_instance_ids(r->uid, r->gid))
		return fail(f, "mount into the instance", "an owner that no instance has");
	priv_fs_ids(r->uid, r->gid);
	point = target(in[0], r->path, S_ISDIR(s.st_mode));
	priv_fs_ids(0, 0);
	if (point < 0)
		fail(f, "find the place to mount on", "`/%s`", r->path);
	else if (sys_move_mount(in[1], "", point, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH))
		fail(f, "mount into the instance", "move_mount: `/%s`", r->path);
	else
		return 0;
	remove_target(in[0], r->path, r->uid, r->gid);
	return -1;
}

int priv_unbind(const void *request, const int in[], int count, int out[], struct failure *f)
{
	const struct priv_unbind *r = request;
	struct stat root;
	char self[32];
	int failed;

	(void)count, (void)out;
	errno = EINVAL;
	if (!plain_path(r->path, sizeof(r->path)) || fstat(in[0], &root) || !S_ISDIR(root.st_mode))
		return fail(f, "unmount", "not a place below the root");
	if (!priv_instance_ids(r->uid, r->gid))
		return fail(f, "unmount", "an owner that no instance has");
	/* By its descriptor: the instance cannot put anything else in its place. */
	snprintf(self, sizeof(self), "self/fd/%d", in[1]);
	failed = fchdir(priv_proc) || umount2(self, MNT_DETACH);
	if (failed)
		fail(f, "unmount", "`/%s`", r->path);
	if (chdir("/") || failed)
		return -1;
	remove_target(in[0], r->path, r->uid, r->gid);
	return 0;
}
