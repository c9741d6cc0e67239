/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Folders of /sys/class that are covered: what is in them then is links that we make. */
#include "priv.h"

#include <linux/magic.h>
#include <sys/stat.h>

#define INSIDE (RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS)
#define COVER  (MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC)

/* A tmpfs that priv_class() made: even for host root only the capability makes its root writable. */
static bool is_cover(int fd)
{
	struct stat s;

	if (fstat(fd, &s) || !priv_is_on(fd, TMPFS_MAGIC))
		return false;
	errno = EINVAL;
	return S_ISDIR(s.st_mode) && (s.st_mode & 07777) == 0555 && !s.st_uid;
}

/* The version of its interface, which libraries read before anything else. */
static int copy_version(int from, int to)
{
	char text[32];
	OWNED int file = -1;
	ssize_t length = read_at(from, "abi_version", text, sizeof(text));

	if (length <= 0)
		return 0;
	file = openat(to, "abi_version", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0444);
	return file < 0 || write(file, text, (size_t)length) != length ? -1 : 0;
}

int priv_class(const void *request, const int in[], int count, int out[], struct failure *f)
{
	static const char *const options[][2] = {
		{"source", "ctrmgr-class"}, {"size", "1m"}, {"nr_inodes", "1024"}, {"mode", "555"}};
	const struct priv_class *r = request;
	OWNED int context = -1, mount = -1, point = -1, folder = -1;
	char path[PRIV_NAME + 16];

	(void)count;
	errno = EINVAL;
	if (strnlen(r->name, sizeof(r->name)) == sizeof(r->name) || strncmp(r->name, "infiniband", 10) ||
	    strchr(r->name, '/'))
		return fail(f, "cover a class", "not one that is covered");
	snprintf(path, sizeof(path), "sys/class/%s", r->name);
	point = sys_openat2(in[0], path, O_PATH | O_DIRECTORY, INSIDE);
	folder = point < 0 ? -1 : openat(point, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (folder < 0 || !priv_is_on(folder, SYSFS_MAGIC))
		return fail(f, "cover a class", "`/%s`", path);
	context = sys_fsopen("tmpfs");
	if (context < 0)
		return fail(f, "cover a class", "fsopen: tmpfs");
	for (size_t i = 0; i < ARRAY_SIZE(options); i++)
		if (sys_fsconfig(context, FSCONFIG_SET_STRING, options[i][0], options[i][1], 0))
			return fail(f, "cover a class", "fsconfig: option `%s`", options[i][0]);
	if (sys_fsconfig(context, FSCONFIG_CMD_CREATE, NULL, NULL, 0) || (mount = sys_fsmount(context, COVER)) < 0)
		return fail(f, "cover a class", "fsmount: tmpfs");
	if (copy_version(folder, mount))
		return fail(f, "cover a class", "`abi_version`");
	if (sys_move_mount(mount, "", point, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH))
		return fail(f, "cover a class", "move_mount: `/%s`", path);
	out[0] = take_fd(&mount);
	return 0;
}

/* Or nothing. */
static bool is_link(int cover, const char *name)
{
	struct stat s;

	if (fstatat(cover, name, &s, AT_SYMLINK_NOFOLLOW))
		return errno == ENOENT;
	errno = EINVAL;
	return S_ISLNK(s.st_mode);
}

int priv_class_link(const void *request, const int in[], int count, int out[], struct failure *f)
{
	const struct priv_class_link *r = request;

	(void)count, (void)out;
	errno = EINVAL;
	if (!plain_path(r->name, sizeof(r->name)) || strchr(r->name, '/') ||
	    strnlen(r->target, sizeof(r->target)) == sizeof(r->target) ||
	    (r->target[0] && strncmp(r->target, "../../devices/", 14)))
		return fail(f, "read the request", "not a device of a class");
	if (!is_cover(in[0]))
		return fail(f, "read the request", "not the cover of a class");
	if (!is_link(in[0], r->name))
		return fail(f, "hide a device", "`%s` is no link", r->name);
	if (unlinkat(in[0], r->name, 0) && errno != ENOENT)
		return fail(f, "hide a device", "`%s`", r->name);
	if (r->target[0] && symlinkat(r->target, in[0], r->name))
		return fail(f, "show a device", "`%s`", r->name);
	return 0;
}
