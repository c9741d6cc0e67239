/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * The instance's /dev and the nodes in it. It is a tmpfs whose superblock belongs to the host's user
 * namespace: the only kind on which a node works for mapped ids. Container root owns its directories: it may unlink,
 * rename and link there, so nothing is ever found by name again that was not just made. */
#include "priv.h"

#include <linux/magic.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#ifndef SYS_fchmodat2
#define SYS_fchmodat2 452
#endif
#define IN_DEV (RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV)

static int dev_directory(int dev, const char *name, const struct priv_dev *r, mode_t mode)
{
	return mkdirat(dev, name, mode) || fchownat(dev, name, r->uid, r->gid, AT_SYMLINK_NOFOLLOW) ? -1 : 0;
}

static int populate(int dev, const struct priv_dev *r, struct failure *f)
{
	static const struct {
		const char *name;
		unsigned major, minor;
	} nodes[] = {{"null", 1, 3},   {"zero", 1, 5},    {"full", 1, 7},
		     {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0}};
	static const char *const links[][2] = {{"pts/ptmx", "ptmx"},
					       {"/proc/self/fd", "fd"},
					       {"/proc/self/fd/0", "stdin"},
					       {"/proc/self/fd/1", "stdout"},
					       {"/proc/self/fd/2", "stderr"}};
	static const char *const directories[] = {"pts", "shm", "mqueue"};
	OWNED int console = -1;

	for (size_t i = 0; i < ARRAY_SIZE(nodes); i++)
		if (mknodat(dev, nodes[i].name, S_IFCHR | 0666, makedev(nodes[i].major, nodes[i].minor)) ||
		    fchownat(dev, nodes[i].name, r->uid, i == 5 ? r->tty_gid : r->gid, AT_SYMLINK_NOFOLLOW))
			return fail(f, "fill /dev", "mknod: `%s`", nodes[i].name);
	for (size_t i = 0; i < ARRAY_SIZE(links); i++)
		if (symlinkat(links[i][0], dev, links[i][1]) ||
		    fchownat(dev, links[i][1], r->uid, r->gid, AT_SYMLINK_NOFOLLOW))
			return fail(f, "fill /dev", "`%s`", links[i][1]);
	for (size_t i = 0; i < ARRAY_SIZE(directories); i++)
		if (dev_directory(dev, directories[i], r, 0755))
			return fail(f, "fill /dev", "`%s`", directories[i]);
	console = openat(dev, "console", O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
	if (console < 0 || fchown(console, r->uid, r->gid) || mkdirat(dev, ".ctrmgr-empty", 0555))
		return fail(f, "fill /dev", "`console`");
	return 0;
}

int priv_dev(const void *request, const int in[], int count, int out[], struct failure *f)
{
	const struct priv_dev *r = request;
	OWNED int context = -1, mount = -1;
	char uid[12], gid[12];
	const char *const options[][2] = {{"source", "ctrmgr-dev"}, {"size", "512k"}, {"nr_inodes", "2048"},
					  {"mode", "755"},          {"uid", uid},     {"gid", gid}};
	mode_t mask;
	int failed;

	(void)in, (void)count;
	if (!priv_instance_ids(r->uid, r->gid) || !priv_instance_ids(r->uid, r->tty_gid))
		return fail(f, "make /dev", "an owner that no instance has");
	snprintf(uid, sizeof(uid), "%u", r->uid);
	snprintf(gid, sizeof(gid), "%u", r->gid);
	context = sys_fsopen("tmpfs");
	if (context < 0)
		return fail(f, "make /dev", "fsopen: tmpfs");
	for (size_t i = 0; i < ARRAY_SIZE(options); i++)
		if (sys_fsconfig(context, FSCONFIG_SET_STRING, options[i][0], options[i][1], 0))
			return fail(f, "make /dev", "fsconfig: option `%s`", options[i][0]);
	if (sys_fsconfig(context, FSCONFIG_CMD_CREATE, NULL, NULL, 0))
		return fail(f, "make /dev", "fsconfig: tmpfs");
	mount = sys_fsmount(context, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC);
	if (mount < 0)
		return fail(f, "make /dev", "fsmount: tmpfs");
	mask = umask(0);
	failed = populate(mount, r, f);
	umask(mask);
	if (failed)
		return -1;
	out[0] = take_fd(&mount);
	return 0;
}

/* Opens the directory of `path`, making what is missing as the instance's root would; `made` is the first of that. */
static int parent_directory(int dev, char *path, const struct priv_place *r, int *made)
{
	OWNED int dir = fcntl(dev, F_DUPFD_CLOEXEC, 3);
	char *name = path, *slash;

	for (; dir >= 0 && (slash = strchr(name, '/')); name = slash + 1) {
		int next, created;

		*slash = '\0';
		created = !mkdirat(dir, name, 0755);
		next = sys_openat2(dir, name, O_RDONLY | O_DIRECTORY, IN_DEV);
		close_fd(&dir);
		dir = next;
		/* by its descriptor: under this name there can be a node by now that was taken away */
		if (created && next >= 0 && fchown(next, r->root_uid, r->root_gid))
			return -1;
		if (created && *made < 0 && next >= 0)
			*made = fcntl(next, F_DUPFD_CLOEXEC, 3);
	}
	memmove(path, name, strlen(name) + 1);
	return take_fd(&dir);
}

/* Undoes what was made on the way to `path`, which is gone: its directories, upwards until `made`; one that is not
 * empty stays, and all above it. */
static void remove_above(int dev, char *path, int made)
{
	struct stat first, here;
	char *slash;

	if (made < 0 || fstat(made, &first))
		return;
	while ((slash = strrchr(path, '/'))) {
		OWNED int above = -1, directory = -1;

		*slash = '\0';
		slash = strrchr(path, '/');
		directory = sys_openat2(dev, path, O_PATH | O_DIRECTORY, IN_DEV);
		if (directory < 0 || fstat(directory, &here))
			return;
		above = sys_openat2(directory, "..", O_PATH | O_DIRECTORY, RESOLVE_NO_XDEV);
		if (above < 0 || unlinkat(above, slash ? slash + 1 : path, AT_REMOVEDIR) ||
		    (here.st_ino == first.st_ino && here.st_dev == first.st_dev))
			return;
	}
}

/* A tmpfs that priv_dev() made: its root belongs to the instance, which can give it to no id of the host. So it is not
 * the host's /dev, which to statfs is one, too. */
static bool is_dev(int fd, struct stat *s)
{
	return priv_is_on(fd, TMPFS_MAGIC) && !fstat(fd, s) && S_ISDIR(s->st_mode) && s->st_uid;
}

static int chmod_inode(int inode, mode_t mode)
{
	char path[40];

	if (!syscall(SYS_fchmodat2, inode, "", mode, AT_EMPTY_PATH))
		return 0;
	if (errno != ENOSYS && errno != EPERM)
		return -1;
	/* before 6.6 */
	snprintf(path, sizeof(path), "self/fd/%d", inode);
	return fchmodat(priv_proc, path, mode, 0);
}

/* The instance's root can put something else in the place of what was made: then it has not this owner, which no
 * process of the instance can give away, or not this mode. */
static bool just_made(int node, mode_t type, dev_t number)
{
	struct stat s;

	if (fstat(node, &s))
		return false;
	errno = EBUSY;
	return s.st_mode == type && s.st_rdev == number && s.st_uid == geteuid();
}

int priv_node(const void *request, const int in[], int count, int out[], struct failure *f)
{
	const struct priv_node *r = request;
	OWNED int node = -1;
	struct stat host, dev;

	(void)count;
	errno = EINVAL;
	if (!plain_path(r->aside, sizeof(r->aside)) || strchr(r->aside, '/') || (r->mode & ~0777u) ||
	    !is_dev(in[0], &dev))
		return fail(f, "make the node", "not a place below /dev");
	if (!priv_instance_ids(r->uid, r->gid))
		return fail(f, "make the node", "an owner that no instance has");
	if (fstat(in[1], &host))
		return fail(f, "look at the host's node", "fstat");
	errno = ENODEV;
	if (!host.st_nlink) /* its number may be another device's soon */
		return fail(f, "look at the host's node", "the node is gone by now");
	if ((host.st_mode & S_IFMT) != r->type || (r->type != S_IFCHR && r->type != S_IFBLK) ||
	    major(host.st_rdev) != r->major || minor(host.st_rdev) != r->minor)
		return fail(f, "look at the host's node", "it is another device than %u:%u by now", r->major, r->minor);
	/* Closed to all until it is the owner's: the instance sees it from the first moment on. */
	if (mknodat(in[0], r->aside, r->type, host.st_rdev))
		return fail(f, "make the node", "mknod: %u:%u", r->major, r->minor);
	node = openat(in[0], r->aside, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	if (node < 0 || !just_made(node, r->type, host.st_rdev) || fchownat(node, "", r->uid, r->gid, AT_EMPTY_PATH) ||
	    chmod_inode(node, r->mode)) {
		fail(f, "make the node", "%u:%u", r->major, r->minor);
		unlinkat(in[0], r->aside, 0);
		return -1;
	}
	out[0] = take_fd(&node);
	return 0;
}

int priv_place(const void *request, const int in[], int count, int out[], struct failure *f)
{
	const struct priv_place *r = request;
	OWNED int dir = -1, made = -1;
	char path[PRIV_PATH];
	struct stat dev;
	int failed;

	(void)count;
	errno = EINVAL;
	if (!plain_path(r->path, sizeof(r->path)) || !plain_path(r->aside, sizeof(r->aside)) || strchr(r->aside, '/') ||
	    !is_dev(in[0], &dev))
		return fail(f, "make the node", "not a place below /dev");
	if (!priv_instance_ids(r->root_uid, r->root_gid))
		return fail(f, "make the node", "an owner that no instance has");
	memcpy(path, r->path, sizeof(path));
	dir = parent_directory(in[0], path, r, &made);
	if (dir < 0)
		failed = fail(f, "make the node", "openat2: directories of `/dev/%s`", r->path);
	else if (syscall(SYS_renameat2, in[0], r->aside, dir, path, 1 /* RENAME_NOREPLACE */))
		failed = fail(f, errno == EEXIST ? "name the node" : "make the node",
			      errno == ENOSYS || errno == EINVAL ? "renameat2: `/dev/%s`" : "`/dev/%s`", r->path);
	else
		failed = 0;
	if (failed) {
		memcpy(path, r->path, sizeof(path));
		remove_above(in[0], path, made);
		return -1;
	}
	out[0] = take_fd(&made);
	return 0;
}

int priv_revoke(const void *request, const int in[], int count, int out[], struct failure *f)
{
	const struct priv_revoke *r = request;
	struct stat dev, kept, named;
	OWNED int dir = -1;
	char path[PRIV_PATH], *slash;
	const char *name;

	(void)out;
	errno = EINVAL;
	if (!plain_path(r->path, sizeof(r->path)) || !is_dev(in[0], &dev) || fstat(in[1], &kept) ||
	    kept.st_dev != dev.st_dev || (!S_ISCHR(kept.st_mode) && !S_ISBLK(kept.st_mode)) || r->uid == UINT32_MAX ||
	    r->gid == UINT32_MAX)
		return fail(f, "revoke the node", "not a node of /dev");
	/* The inode, not a name: this reaches hard links and bind mounts too, and whoever opens /proc/self/fd again.
	 * The owner first: whoever is it can undo a chmod. */
	if (fchownat(in[1], "", r->uid, r->gid, AT_EMPTY_PATH) || chmod_inode(in[1], 0))
		return fail(f, "revoke the node", "fchmodat2: `/dev/%s`", r->path);
	if (r->keep)
		return 0;
	memcpy(path, r->path, sizeof(path));
	slash = strrchr(path, '/');
	name = slash ? slash + 1 : path;
	if (slash)
		*slash = '\0';
	dir = slash ? sys_openat2(in[0], path, O_RDONLY | O_DIRECTORY, IN_DEV) : fcntl(in[0], F_DUPFD_CLOEXEC, 3);
	/* container root may have moved it away and put something else there: then it is not ours to remove */
	if (dir >= 0 && !fstatat(dir, name, &named, AT_SYMLINK_NOFOLLOW) && named.st_ino == kept.st_ino &&
	    named.st_dev == kept.st_dev && unlinkat(dir, name, 0))
		return fail(f, "remove the node", "`/dev/%s`", r->path);
	if (slash)
		*slash = '/';
	remove_above(in[0], path, count > 2 ? in[2] : -1);
	return 0;
}

int priv_grant(const void *request, const int in[], int count, int out[], struct failure *f)
{
	const struct priv_grant *r = request;
	struct stat dev, s;

	(void)count, (void)out;
	errno = EINVAL;
	if (!is_dev(in[0], &dev) || fstat(in[1], &s) || s.st_dev != dev.st_dev || (r->mode & ~0777u) ||
	    (!S_ISCHR(s.st_mode) && !S_ISBLK(s.st_mode)))
		return fail(f, "grant the node", "not a node of /dev");
	if (!priv_instance_ids(r->uid, r->gid))
		return fail(f, "grant the node", "an owner that no instance has");
	if (fchownat(in[1], "", r->uid, r->gid, AT_EMPTY_PATH) || chmod_inode(in[1], r->mode))
		return fail(f, "grant the node", "fchmodat2: of %u:%u", major(s.st_rdev), minor(s.st_rdev));
	return 0;
}
