/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * File systems of a device's own: a disk's, which nobody else has mounted, and memory. Mounted here and not by the
 * instance, whose root could choose what the kernel reads, and options. */
#include "priv.h"

#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#define CREATE_EXCL 8 /* FSCONFIG_CMD_CREATE_EXCL, Linux 6.6: no superblock that is there already */

static const struct known {
	const char *name;
	bool disk;
	bool owned; /* has no owners of its own: everything is the instance's root's */
} KNOWN[] = {
	{"tmpfs", false, true}, {"ext4", true, false},   {"xfs", true, false},      {"btrfs", true, false},
	{"f2fs", true, false},  {"erofs", true, false},  {"squashfs", true, false}, {"vfat", true, true},
	{"exfat", true, true},  {"iso9660", true, true}, {"udf", true, true},
};

static const struct known *find(const char *name)
{
	for (size_t i = 0; i < ARRAY_SIZE(KNOWN); i++)
		if (!strcmp(name, KNOWN[i].name))
			return &KNOWN[i];
	return NULL;
}

/* A directory of nobody's, with a node of the device's number: the kernel takes no descriptor for it, and shows the
 * instance what it was given. */
static int place_of_node(const struct stat *node, const char *name)
{
	OWNED int context = sys_fsopen("tmpfs"), mount = -1;

	if (context < 0 || sys_fsconfig(context, FSCONFIG_CMD_CREATE, NULL, NULL, 0) ||
	    (mount = sys_fsmount(context, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC)) < 0 ||
	    mknodat(mount, name, S_IFBLK | 0600, node->st_rdev))
		return -1;
	return take_fd(&mount);
}

/* A value with a slash could be a path of the host's: of a journal, of another disk. */
static int set_option(int context, char *option)
{
	char *value = strchr(option, '=');

	if (!strcmp(option, "noatime"))
		return 0; /* the mount's, not the file system's */
	errno = EINVAL;
	if (strchr(option, '/') || !strncmp(option, "source", strlen("source")))
		return -1;
	if (!value)
		return sys_fsconfig(context, FSCONFIG_SET_FLAG, option, NULL, 0);
	*value++ = '\0';
	return sys_fsconfig(context, FSCONFIG_SET_STRING, option, value, 0);
}

static int set_options(int context, const struct priv_filesystem *r, const struct known *type, struct failure *f)
{
	char data[PRIV_PATH], id[12], *rest = data, *option;

	snprintf(id, sizeof(id), "%u", r->uid);
	if (type->owned && sys_fsconfig(context, FSCONFIG_SET_STRING, "uid", id, 0))
		return fail(f, "mount the file system", "%s: its owner", r->type);
	snprintf(id, sizeof(id), "%u", r->gid);
	if (type->owned && sys_fsconfig(context, FSCONFIG_SET_STRING, "gid", id, 0))
		return fail(f, "mount the file system", "%s: its group", r->type);
	if (!r->writable && sys_fsconfig(context, FSCONFIG_SET_FLAG, "ro", NULL, 0))
		return fail(f, "mount the file system", "%s: read-only", r->type);
	memcpy(data, r->data, sizeof(data));
	while (r->data[0] && (option = strsep(&rest, ",")))
		if (set_option(context, option))
			return fail(f, "mount the file system", "%s: option `%s`", r->type, option);
	return 0;
}

static bool has_option(const char *data, const char *option)
{
	const char *found = strstr(data, option);
	size_t length = strlen(option);

	return found && (found == data || found[-1] == ',') && (!found[length] || found[length] == ',');
}

/* One try: the working directory is where the node is. */
static int create(const struct priv_filesystem *r, const struct known *type, unsigned command, struct failure *f)
{
	OWNED int context = sys_fsopen(r->type);
	char said[128];
	int error;

	if (context < 0)
		return errno == ENODEV ? fail(f, "mount the file system", "filesystem: this kernel has no %s", r->type)
				       : fail(f, "mount the file system", "fsopen: %s", r->type);
	if (sys_fsconfig(context, FSCONFIG_SET_STRING, "source", r->name, 0))
		return fail(f, "mount the file system", "%s: its source", r->type);
	if (set_options(context, r, type, f))
		return -1;
	if (!sys_fsconfig(context, command, NULL, NULL, 0))
		return take_fd(&context);
	error = errno;
	priv_context_says(context, said, sizeof(said));
	errno = error;
	return fail(f, "mount the file system", "%s on `%s`%s%.120s", r->type, r->name, said[0] ? ": " : "", said);
}

/* What is written must have one owner: a superblock that is there already may be shared only for reading. */
static int create_alone(const struct priv_filesystem *r, const struct known *type, struct failure *f)
{
	int context = create(r, type, CREATE_EXCL, f);

	if (context >= 0)
		return context;
	if (f->error == EOPNOTSUPP || f->error == EINVAL) { /* an older kernel: whoever mounts a disk holds it so */
		OWNED int alone = open(r->name, O_RDONLY | O_EXCL | O_CLOEXEC);

		if (alone < 0 && r->writable)
			return fail(f, "mount the file system", "%s on `%s`", r->type, r->name);
		close_fd(&alone);
		return create(r, type, FSCONFIG_CMD_CREATE, f);
	}
	return f->error == EBUSY && !r->writable ? create(r, type, FSCONFIG_CMD_CREATE, f) : -1;
}

int priv_filesystem(const void *request, const int in[], int count, int out[], struct failure *f)
{
	const struct priv_filesystem *r = request;
	const struct known *type = memchr(r->type, 0, sizeof(r->type)) ? find(r->type) : NULL;
	uint64_t attributes = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | (r->writable ? 0 : MOUNT_ATTR_RDONLY) |
			      (r->executable ? 0 : MOUNT_ATTR_NOEXEC) |
			      (has_option(r->data, "noatime") ? MOUNT_ATTR_NOATIME : 0);
	OWNED int place = -1, context = -1;
	struct stat node;

	errno = EINVAL;
	if (!type || !plain_path(r->name, sizeof(r->name)) || strchr(r->name, '/') ||
	    !memchr(r->data, 0, sizeof(r->data)) || count != type->disk)
		return fail(f, "mount the file system", "not a file system that is known here");
	if (!priv_instance_ids(r->uid, r->gid))
		return fail(f, "mount the file system", "an owner that no instance has");
	if (!type->disk) {
		context = create(r, type, FSCONFIG_CMD_CREATE, f);
	} else {
		if (fstat(in[0], &node))
			return fail(f, "mount the file system", "its device");
		errno = ENOTBLK;
		if (!S_ISBLK(node.st_mode))
			return fail(f, "mount the file system", "`%s` is no block device", r->name);
		place = place_of_node(&node, r->name);
		if (place < 0 || fchdir(place))
			return fail(f, "mount the file system", "a place for its node");
		context = create_alone(r, type, f);
		if (chdir("/"))
			return -1;
	}
	if (context < 0)
		return -1;
	out[0] = sys_fsmount(context, (unsigned)attributes);
	return out[0] < 0 ? fail(f, "mount the file system", "fsmount: %s", r->type) : 0;
}

int priv_shift(const void *request, const int in[], int count, int out[], struct failure *f)
{
	const struct priv_shift *r = request;
	struct mount_attr attr = {.attr_set = MOUNT_ATTR_IDMAP, .userns_fd = (uint64_t)in[1]};

	(void)count, (void)out;
	if (fcntl(in[0], F_GETFD) < 0 || fcntl(in[1], F_GETFD) < 0)
		return fail(f, "shift the ids of the mount", "not a mount");
	if (sys_mount_setattr(in[0], "", AT_EMPTY_PATH | (r->recursive ? AT_RECURSIVE : 0), &attr))
		return fail(f, "shift the ids of the mount",
			    "mount_setattr: this kernel or file system cannot map its ids");
	return 0;
}
