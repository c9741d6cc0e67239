/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Users and groups of an image, from its own files. The files belong to the instance: nothing in
 * them is trusted, and a broken one only means that a name is not found. */
#include "common.h"
#include "exec.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_MAX (4 << 20)

/* Whole text of a regular file, or NULL. Never blocks: a FIFO of that name is passed over, and a symlink that leads
 * over /proc into the instance's own mounts, where a file system of its own could let a monitor wait. */
static char *slurp(const char *path)
{
	int fd = sys_openat2(AT_FDCWD, path, O_RDONLY | O_NONBLOCK | O_NOCTTY, RESOLVE_NO_MAGICLINKS);
	struct stat st;
	char *text = NULL;
	ssize_t n;

	if (fd < 0)
		return NULL;
	if (!fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_size <= FILE_MAX && (text = malloc(st.st_size + 1))) {
		n = read(fd, text, st.st_size);
		text[n > 0 ? n : 0] = '\0';
	}
	close(fd);
	return text;
}

static bool id_number(const char *text, unsigned *id)
{
	char *end;
	unsigned long n;

	if (text[0] < '0' || text[0] > '9')
		return false;
	errno = 0;
	n = strtoul(text, &end, 10);
	*id = (unsigned)n;
	return !errno && !*end && n < UINT32_MAX;
}

/* Next line of `count` fields separated by colons; lines of another shape are passed over. */
static bool next_line(char **cursor, char *field[], int count)
{
	char *line, *colon;
	int n;

	while ((line = strsep(cursor, "\n"))) {
		for (n = 0; n < count; n++) {
			field[n] = line;
			if (!line)
				break;
			colon = strchr(line, ':');
			if (colon)
				*colon++ = '\0';
			line = colon;
		}
		if (n == count && !line)
			return true;
	}
	return false;
}

static void copy(char *to, size_t size, const char *from)
{
	snprintf(to, size, "%s", from);
}

static bool find_user(const char *wanted, struct user *out)
{
	char *text = slurp("/etc/passwd"), *cursor = text, *field[7];
	unsigned uid, gid, number = 0;
	bool numeric = id_number(wanted, &number), found = false;

	while (text && !found && next_line(&cursor, field, 7)) {
		if (!id_number(field[2], &uid) || !id_number(field[3], &gid))
			continue;
		if (numeric ? uid != number : strcmp(field[0], wanted) != 0)
			continue;
		out->uid = uid;
		out->gid = gid;
		copy(out->name, sizeof(out->name), field[0]);
		copy(out->home, sizeof(out->home), field[5]);
		copy(out->shell, sizeof(out->shell), field[6]);
		found = true;
	}
	free(text);
	if (!found && numeric) {
		out->uid = number;
		out->gid = 0;
		return true;
	}
	return found;
}

static bool find_group(const char *wanted, gid_t *gid)
{
	bool found = id_number(wanted, gid);
	char *text = found ? NULL : slurp("/etc/group"), *cursor = text, *field[4];

	while (text && !found && next_line(&cursor, field, 4))
		found = !strcmp(field[0], wanted) && id_number(field[2], gid);
	free(text);
	return found;
}

static void add_supplementary(struct user *out)
{
	char *text = slurp("/etc/group"), *cursor = text, *field[4], *member;
	unsigned gid;

	while (text && out->name[0] && next_line(&cursor, field, 4)) {
		if (!id_number(field[2], &gid))
			continue;
		while ((member = strsep(&field[3], ",")))
			if (!strcmp(member, out->name) && out->group_count < sizeof(out->groups) / sizeof(*out->groups))
				out->groups[out->group_count++] = gid;
	}
	free(text);
}

const char *identify(const char *user, const char *group, struct user *out)
{
	*out = (struct user){0};
	if (!find_user(user ? user : "0", out))
		return "user";
	if (!group)
		add_supplementary(out);
	else if (!find_group(group, &out->gid))
		return "group";
	if (!out->home[0])
		copy(out->home, sizeof(out->home), out->uid ? "/" : "/root");
	if (!out->shell[0])
		copy(out->shell, sizeof(out->shell), "/bin/sh");
	return NULL;
}

const char *identify_owner(const char *user, const char *group, uid_t *uid, gid_t *gid)
{
	struct user found;

	if (!id_number(user, uid)) {
		if (!find_user(user, &found))
			return "user";
		*uid = found.uid;
	}
	return find_group(group, gid) ? NULL : "group";
}
