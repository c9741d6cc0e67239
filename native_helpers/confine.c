/* SPDX-License-Identifier: GPL-3.0-or-later */
#include "confine.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/keyctl.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static const struct {
	const char *name;
	unsigned resource;
} LIMITS[] = {
	{"as", RLIMIT_AS},           {"core", RLIMIT_CORE},         {"cpu", RLIMIT_CPU},
	{"data", RLIMIT_DATA},       {"fsize", RLIMIT_FSIZE},       {"locks", RLIMIT_LOCKS},
	{"memlock", RLIMIT_MEMLOCK}, {"msgqueue", RLIMIT_MSGQUEUE}, {"nice", RLIMIT_NICE},
	{"nofile", RLIMIT_NOFILE},   {"nproc", RLIMIT_NPROC},       {"rss", RLIMIT_RSS},
	{"rtprio", RLIMIT_RTPRIO},   {"rttime", RLIMIT_RTTIME},     {"sigpending", RLIMIT_SIGPENDING},
	{"stack", RLIMIT_STACK},
};

static bool number(const char *text, int base, uint64_t *value)
{
	char *end;

	/* strtoull would take "-1" and " 1" */
	if (!strchr("0123456789abcdefABCDEF", text[0]) || !text[0])
		return false;
	errno = 0;
	*value = strtoull(text, &end, base);
	return !errno && !*end;
}

static bool limit_value(const char *text, rlim_t *value)
{
	uint64_t n;

	if (!strcmp(text, "unlimited")) {
		*value = RLIM_INFINITY;
		return true;
	}
	if (!number(text, 10, &n))
		return false;
	*value = n;
	return true;
}

static int rlimit_row(struct confinement *c, char *const field[], size_t count)
{
	struct rlimit limit;
	size_t place = 0;

	if (count != 4 || !limit_value(field[2], &limit.rlim_cur) || !limit_value(field[3], &limit.rlim_max) ||
	    limit.rlim_cur > limit.rlim_max)
		return -EINVAL;
	for (size_t i = 0; i < sizeof(LIMITS) / sizeof(*LIMITS); i++) {
		if (strcmp(LIMITS[i].name, field[1]))
			continue;
		while (place < c->rlimit_count && c->rlimits[place].resource != LIMITS[i].resource)
			place++;
		c->rlimits[place].resource = LIMITS[i].resource;
		c->rlimits[place].limit = limit;
		c->rlimit_count += place == c->rlimit_count;
		return 1;
	}
	return -EINVAL;
}

static int oom_row(struct confinement *c, char *const field[], size_t count)
{
	bool negative = count == 2 && field[1][0] == '-';
	uint64_t n;

	if (count != 2 || !number(field[1] + negative, 10, &n) || n > 1000)
		return -EINVAL;
	c->adjusts_oom = true;
	c->oom_score_adj = negative ? -(int)n : (int)n;
	return 1;
}

int confine_row(struct confinement *c, char *const field[], size_t count)
{
	const char *key = field[0];

	if (!strcmp(key, "rlimit"))
		return rlimit_row(c, field, count);
	if (!strcmp(key, "oom-score-adj"))
		return oom_row(c, field, count);
	if (!strcmp(key, "capabilities"))
		return count == 2 && number(field[1], 16, &c->capabilities) ? 1 : -EINVAL;
	if (!strcmp(key, "no-new-privs")) {
		if (count != 2 || (strcmp(field[1], "0") && strcmp(field[1], "1")))
			return -EINVAL;
		c->no_new_privs = field[1][0] == '1';
		return 1;
	}
	if (!strcmp(key, "apparmor") || !strcmp(key, "seccomp")) {
		if (count != 2 || !field[1][0] || (key[0] == 's' && field[1][0] != '/'))
			return -EINVAL;
		*(key[0] == 's' ? &c->seccomp : &c->apparmor) = field[1];
		return 1;
	}
	return 0;
}

static int load_filter(struct confinement *c, int fd)
{
	struct stat st;
	void *map;

	if (fstat(fd, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode) || st.st_size <= 0 || st.st_size % sizeof(struct sock_filter) ||
	    st.st_size > (off_t)(BPF_MAXINSNS * sizeof(struct sock_filter)))
		return -EINVAL;
	map = mmap(NULL, st.st_size, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd, 0);
	if (map == MAP_FAILED)
		return -errno;
	c->filter.filter = map;
	c->filter.len = st.st_size / sizeof(struct sock_filter);
	return 0;
}

int confine_load(struct confinement *c)
{
	int fd, error;

	if (!c->seccomp)
		return 0;
	fd = open(c->seccomp, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0)
		return -errno;
	error = load_filter(c, fd);
	close(fd);
	return error;
}

void confine_unload(struct confinement *c)
{
	if (c->filter.filter)
		munmap(c->filter.filter, c->filter.len * sizeof(struct sock_filter));
	c->filter = (struct sock_fprog){0};
}

int confine_limits(const struct confinement *c, pid_t pid)
{
	for (size_t i = 0; i < c->rlimit_count; i++)
		if (prlimit(pid, c->rlimits[i].resource, &c->rlimits[i].limit, NULL) < 0)
			return -errno;
	return 0;
}

static int put(int folder, const char *path, const char *text)
{
	int fd = openat(folder, path, O_WRONLY | O_CLOEXEC), error = 0;

	if (fd < 0)
		return -errno;
	if (write(fd, text, strlen(text)) < 0)
		error = -errno;
	close(fd);
	return error;
}

int confine_oom(const struct confinement *c, int proc, const char *pid)
{
	char path[40], text[12];

	if (!c->adjusts_oom)
		return 0;
	snprintf(path, sizeof(path), "%.20s/oom_score_adj", pid);
	snprintf(text, sizeof(text), "%d", c->oom_score_adj);
	return put(proc, path, text);
}

int confine_keyring(void)
{
	if (syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, NULL) < 0 && errno != ENOSYS)
		return -errno;
	return 0;
}

static int drop_bounding(uint64_t keep)
{
	for (int cap = 0; cap < 64; cap++) {
		if (keep >> cap & 1)
			continue;
		/* EINVAL: this kernel's last capability has been passed */
		if (prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) < 0)
			return errno == EINVAL ? 0 : -errno;
	}
	return 0;
}

static int set_label(const char *profile, int proc)
{
	char text[300];
	int error;

	if (snprintf(text, sizeof(text), "exec %s", profile) >= (int)sizeof(text))
		return -ENAMETOOLONG;
	error = put(proc, "thread-self/attr/apparmor/exec", text);
	/* before Linux 5.8 */
	return error == -ENOENT ? put(proc, "thread-self/attr/exec", text) : error;
}

int confine_inside(const struct confinement *c, int proc, const char **step)
{
	int error;

	*step = "drop capabilities";
	error = drop_bounding(c->capabilities);
	if (error)
		return error;
	*step = "set the AppArmor profile";
	error = c->apparmor ? set_label(c->apparmor, proc) : 0;
	if (error)
		return error;
	*step = "set no-new-privileges";
	if (c->no_new_privs && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		return -errno;
	/* Last: the policy may forbid what the steps above need. */
	*step = "load the seccomp filter";
	if (c->filter.len && syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &c->filter) < 0)
		return -errno;
	return 0;
}
