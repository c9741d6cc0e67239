/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * The instance's root: layers, overlay and what the kernel provides. */
#include "priv.h"

#include <linux/magic.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <termios.h>

#define SECBIT_KEEP_FS_CAPS (1 << 2) /* SECBIT_NO_SETUID_FIXUP: changing fsuid keeps the capabilities */
#define INSIDE              (RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS)
#define PSEUDO              (MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC)

int priv_layer(const void *request, const int in[], int count, int out[], struct failure *f)
{
	const struct priv_layer *r = request;
	struct mount_attr attr = {.attr_set = MOUNT_ATTR_NODEV | (r->read_only ? MOUNT_ATTR_RDONLY : 0)};
	OWNED int mount = -1;
	struct stat s;

	errno = EINVAL;
	if (fstat(in[0], &s) || !S_ISDIR(s.st_mode))
		return fail(f, "clone a layer", "not a directory");
	mount = sys_open_tree(in[0], "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH);
	if (mount < 0)
		return fail(f, "clone a layer", "open_tree");
	if (count > 1 && in[1] >= 0) {
		attr.attr_set |= MOUNT_ATTR_IDMAP;
		attr.userns_fd = (uint64_t)in[1];
	}
	/* Without an idmap the rest is a second lock: overlay never writes to a lower layer, and its own mount is
	 * nodev. */
	if (sys_mount_setattr(mount, "", AT_EMPTY_PATH, &attr) && attr.attr_set & MOUNT_ATTR_IDMAP)
		return fail(f, "idmap a layer", "mount_setattr: this kernel or filesystem cannot idmap it");
	out[0] = take_fd(&mount);
	return 0;
}

/* fsopen has failed: the call, or the type, is missing. */
static int no_context(struct failure *f, const char *step, const char *type)
{
	return errno == ENODEV ? fail(f, step, "filesystem: this kernel has no %s", type)
			       : fail(f, step, "fsopen: %s", type);
}

/* A place to mount on was not opened: the image's own fault, or the call is missing. */
static int no_place(struct failure *f, const char *path)
{
	return errno == ENOSYS || errno == EPERM ? fail(f, "mount", "openat2: `/%s`", path)
						 : fail(f, "mount", "`/%s` in the image is no directory", path);
}

/* Kernels before 6.13 take no descriptors: the layers are attached in the caller's mount namespace, on a tmpfs that is
 * the working directory, and named by relative paths. Overlay clones them: leave_paths() takes the tmpfs away before
 * anything else is mounted, so that pivot_root and umount later find the old root on top, and nothing over it. */
static int overlay_by_paths(int context, int place, int upper, const int layer[], int layers, struct failure *f)
{
	char name[16], lower[PRIV_FDS * 6] = "";
	OWNED int tmpfs = sys_fsopen("tmpfs"), mount = -1;

	if (tmpfs < 0 || sys_fsconfig(tmpfs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) ||
	    (mount = sys_fsmount(tmpfs, PSEUDO)) < 0 ||
	    sys_move_mount(mount, "", place, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) || fchdir(mount))
		return fail(f, "make room for the layers", "move_mount: tmpfs");
	for (int i = -1; i < layers; i++) {
		snprintf(name, sizeof(name), i < 0 ? "u" : "%d", i);
		if (mkdirat(mount, name, 0755) ||
		    sys_move_mount(i < 0 ? upper : layer[i], "", mount, name, MOVE_MOUNT_F_EMPTY_PATH))
			return fail(f, "attach a layer", "move_mount: `%s`", name);
		if (i >= 0) {
			strcat(lower, i ? ":" : "");
			strcat(lower, name);
		}
	}
	if (sys_fsconfig(context, FSCONFIG_SET_STRING, "lowerdir", lower, 0) ||
	    sys_fsconfig(context, FSCONFIG_SET_STRING, "upperdir", "u/upper", 0) ||
	    sys_fsconfig(context, FSCONFIG_SET_STRING, "workdir", "u/work", 0))
		return fail(f, "stack the layers", "fsconfig: by path");
	return 0;
}

static int leave_paths(void)
{
	int failed = umount2(".", MNT_DETACH);

	return chdir("/") || failed ? -1 : 0;
}

static int overlay_by_descriptors(int context, int upper, int work, const int layer[], int layers)
{
	for (int i = 0; i < layers; i++)
		if (sys_fsconfig(context, FSCONFIG_SET_FD, "lowerdir+", NULL, layer[i]))
			return -1;
	return sys_fsconfig(context, FSCONFIG_SET_FD, "upperdir", NULL, upper) ||
			       sys_fsconfig(context, FSCONFIG_SET_FD, "workdir", NULL, work)
		       ? -1
		       : 0;
}

void priv_context_says(int context, char *text, size_t size)
{
	ssize_t length = read(context, text, size - 1);

	text[length > 0 ? length : 0] = '\0';
}

int priv_overlay(const void *request, const int in[], int count, int out[], struct failure *f)
{
	const struct priv_overlay *r = request;
	OWNED int context = -1, upper = -1, work = -1, mount = -1;
	struct statfs s;
	char said[160];
	bool paths = false;
	int failed;

	if (!priv_instance_ids(r->uid, r->gid))
		return fail(f, "mount the root", "an owner that no instance has");
	context = sys_fsopen("overlay");
	if (context < 0)
		return no_context(f, "mount the root", "overlay");
	sys_fsconfig(context, FSCONFIG_SET_STRING, "source", "ctrmgr", 0);
	upper = openat(in[1], "upper", O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	work = openat(in[1], "work", O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (upper < 0 || work < 0)
		return fail(f, "open the instance's own layer", "`upper` or `work`");
	errno = EROFS; /* overlay would call it an invalid argument, as kernels do that do not know descriptors */
	if (!fstatfs(upper, &s) && s.f_flags & ST_RDONLY)
		return fail(f, "open the instance's own layer", "`upper`");
	if (overlay_by_descriptors(context, upper, work, in + 2, count - 2)) {
		if (errno != EINVAL && errno != EOPNOTSUPP)
			return fail(f, "stack the layers", "fsconfig: by descriptor");
		close_fd(&context);
		context = sys_fsopen("overlay");
		sys_fsconfig(context, FSCONFIG_SET_STRING, "source", "ctrmgr", 0);
		if (overlay_by_paths(context, in[0], in[1], in + 2, count - 2, f))
			return -1;
		paths = true;
	}
	/* overlay remembers who mounts it and acts as him: with ids that the layers do not map it would come up
	 * read-only, without any error */
	prctl(PR_SET_SECUREBITS, SECBIT_KEEP_FS_CAPS);
	priv_fs_ids(r->uid, r->gid);
	failed = sys_fsconfig(context, FSCONFIG_CMD_CREATE, NULL, NULL, 0);
	priv_fs_ids(0, 0);
	if (failed) {
		int error = errno;

		priv_context_says(context, said, sizeof(said));
		errno = error;
		return fail(f, "mount the root", "%s", said[0] ? said : "overlay");
	}
	if (paths && leave_paths())
		return fail(f, "stack the layers", "umount");
	mount = sys_fsmount(context, MOUNT_ATTR_NODEV);
	if (mount < 0 || fstatfs(mount, &s))
		return fail(f, "mount the root", "fsmount: overlay");
	errno = EROFS;
	if (s.f_flags & ST_RDONLY)
		return fail(f, "mount the root", "overlay came up read-only");
	out[0] = take_fd(&mount);
	return 0;
}

/* Opens (and makes, where it is missing) a directory to mount on. */
static int mount_point(int root, const char *path, const struct priv_kernel_mounts *r)
{
	int fd = sys_openat2(root, path, O_PATH | O_DIRECTORY, INSIDE);

	if (fd < 0 && errno == ENOENT && !strchr(path, '/')) {
		priv_fs_ids(r->uid, r->gid);
		mkdirat(root, path, 0755);
		priv_fs_ids(0, 0);
		fd = sys_openat2(root, path, O_PATH | O_DIRECTORY, INSIDE);
	}
	return fd;
}

static int mount_pseudo(int root, const char *type, const char *path, const char *const options[], unsigned attributes,
			const struct priv_kernel_mounts *r, struct failure *f)
{
	OWNED int context = -1, mount = -1, point = mount_point(root, path, r);

	if (point < 0)
		return no_place(f, path);
	context = sys_fsopen(type);
	if (context < 0)
		return no_context(f, "mount", type);
	sys_fsconfig(context, FSCONFIG_SET_STRING, "source", type, 0);
	for (; options && options[0]; options += 2)
		if (sys_fsconfig(context, FSCONFIG_SET_STRING, options[0], options[1], 0))
			return fail(f, "mount", "%s: option `%s`", type, options[0]);
	if (sys_fsconfig(context, FSCONFIG_CMD_CREATE, NULL, NULL, 0))
		return fail(f, "mount", "%s on `/%s`", type, path);
	mount = sys_fsmount(context, attributes);
	if (mount < 0)
		return fail(f, "mount", "fsmount: %s on `/%s`", type, path);
	if (sys_move_mount(mount, "", point, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH))
		return fail(f, "mount", "move_mount: %s on `/%s`", type, path);
	return 0;
}

/* Attributes of a mount that is attached at `path` below `root`, as kernels before mount_setattr take them; both sets
 * of flags have the same numbers. Nobody inside runs yet, so the path is what it was when it was opened. */
static int remount(int root, const char *path, uint64_t attributes)
{
	int failed = fchdir(root) || mount(NULL, path, NULL, MS_REMOUNT | MS_BIND | attributes, NULL);

	return chdir("/") || failed ? -1 : 0;
}

/* A clone of what is at `at` below `from`, mounted over `target`, whose path below `root` is `path`.
 * NULL, or the call that failed. */
static const char *cover(int from, const char *at, unsigned flags, int root, const char *path, int target,
			 uint64_t attributes)
{
	struct mount_attr attr = {.attr_set = attributes};
	OWNED int mount = sys_open_tree(from, at, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | flags);
	bool set;

	if (mount < 0)
		return "open_tree";
	set = !sys_mount_setattr(mount, "", AT_EMPTY_PATH, &attr);
	if (!set && errno != ENOSYS && errno != EPERM)
		return "mount_setattr";
	if (sys_move_mount(mount, "", target, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH))
		return "move_mount";
	return set || !remount(root, path, attributes) ? NULL : "mount_setattr";
}

int priv_kernel_mounts(const void *request, const int in[], int count, int out[], struct failure *f)
{
	const struct priv_kernel_mounts *r = request;
	char uid[12], gid[12], tty[12];
	const char *const pts[] = {"ptmxmode", "0666", "mode", "0620", "gid", tty, NULL, NULL};
	const char *const shm[] = {"mode", "1777", "uid", uid, "gid", gid, NULL, NULL};
	int root = in[0], failed;

	(void)count, (void)out;
	if (!priv_instance_ids(r->uid, r->gid) || !priv_instance_ids(r->uid, r->tty_gid))
		return fail(f, "mount", "an owner that no instance has");
	snprintf(uid, sizeof(uid), "%u", r->uid);
	snprintf(gid, sizeof(gid), "%u", r->gid);
	snprintf(tty, sizeof(tty), "%u", r->tty_gid);
	if (mount_pseudo(root, "proc", "proc", NULL, PSEUDO, r, f))
		return -1;
	if (mount_pseudo(root, "sysfs", "sys", NULL, PSEUDO | (r->host_network ? MOUNT_ATTR_RDONLY : 0), r, f))
		return -1;
	if (r->cgroup && mount_pseudo(root, "cgroup2", "sys/fs/cgroup", NULL, PSEUDO, r, f))
		return -1;
	if (mount_pseudo(root, "devpts", "dev/pts", pts, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC, r, f))
		return -1;
	if (mount_pseudo(root, "tmpfs", "dev/shm", shm, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, r, f))
		return -1;
	priv_fs_ids(r->uid, r->gid); /* mqueue's root belongs to whoever mounts it */
	failed = mount_pseudo(root, "mqueue", "dev/mqueue", NULL, PSEUDO, r, f);
	priv_fs_ids(0, 0);
	return failed;
}

int priv_mask(const void *request, const int in[], int count, int out[], struct failure *f)
{
	const struct priv_mask *r = request;
	OWNED int target = -1;
	const char *failed;
	struct stat s;

	(void)count, (void)out;
	errno = EINVAL;
	if (!plain_path(r->path, sizeof(r->path)) || (strncmp(r->path, "proc/", 5) && strncmp(r->path, "sys/", 4)))
		return fail(f, "mask a path", "it is not below /proc or /sys");
	target = sys_openat2(in[0], r->path, O_PATH, INSIDE);
	if (target < 0)
		return errno == ENOENT ? 0 : fail(f, "mask a path", "openat2: `/%s`", r->path);
	if (fstat(target, &s))
		return fail(f, "mask a path", "`/%s`", r->path);
	if (r->read_only)
		failed = cover(target, "", AT_EMPTY_PATH, in[0], r->path, target, PSEUDO | MOUNT_ATTR_RDONLY);
	else if (S_ISDIR(s.st_mode))
		failed = cover(in[1], ".ctrmgr-empty", 0, in[0], r->path, target, PSEUDO | MOUNT_ATTR_RDONLY);
	else
		failed = cover(in[1], "null", 0, in[0], r->path, target,
			       MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC | MOUNT_ATTR_RDONLY);
	return failed ? fail(f, "mask a path", "%s: `/%s`", failed, r->path) : 0;
}

int priv_console(const void *request, const int in[], int count, int out[], struct failure *f)
{
	const struct priv_console *r = request;
	OWNED int master = -1, slave = -1, point = -1;
	struct statfs s;
	const char *failed;
	char path[24];
	int zero = 0;
	unsigned pty = 0;

	(void)count;
	if (!priv_instance_ids(r->uid, r->gid))
		return fail(f, "make the console", "an owner that no instance has");
	priv_fs_ids(r->uid, r->gid);
	master = sys_openat2(in[0], "dev/pts/ptmx", O_RDWR | O_NOCTTY, INSIDE);
	priv_fs_ids(0, 0);
	if (master >= 0 && !fstatfs(master, &s) && s.f_type != DEVPTS_SUPER_MAGIC) {
		errno = EINVAL;
		return fail(f, "make the console", "`/dev/pts` is no devpts");
	}
	if (master < 0 || ioctl(master, TIOCSPTLCK, &zero) || ioctl(master, TIOCGPTN, &pty) ||
	    (slave = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC)) < 0)
		return fail(f, "make the console", "%s: a pty of /dev/pts", master < 0 ? "openat2" : "TIOCGPTPEER");
	if (fchown(slave, r->uid, r->gid))
		return fail(f, "make the console", "chown");
	snprintf(path, sizeof(path), "dev/pts/%u", pty);
	point = openat(in[1], "console", O_PATH | O_NOFOLLOW | O_CLOEXEC);
	failed = point < 0 ? "open"
			   : cover(in[0], path, 0, in[0], "dev/console", point, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC);
	if (failed)
		return fail(f, "make the console", "%s: `/dev/console`", failed);
	out[0] = take_fd(&master);
	out[1] = take_fd(&slave);
	return 0;
}
