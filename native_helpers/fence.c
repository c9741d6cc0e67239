/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * When there is a fence (priv_fence.c): put up by the first device that is taken away, so that what never loses one
 * pays nothing. The host's kernel files are read through its pid 1: the monitor's own root is the instance's. */
#include "monitor.h"

#include <sys/stat.h>

/* Whether BPF is among the security modules that are on; without that its programs load and are never called. */
static int bpf_listens(const struct monitor *m, struct failure *f)
{
	char list[256];
	ssize_t length = read_at(m->proc, "1/root/sys/kernel/security/lsm", list + 1, sizeof(list) - 2);

	if (length <= 0)
		return fail(f, "fence open descriptors", "securityfs is not mounted");
	list[0] = ',';
	list[strcspn(list, "\n")] = '\0';
	strcat(list, ",");
	errno = EOPNOTSUPP;
	return strstr(list, ",bpf,") ? 0 : fail(f, "fence open descriptors", "`bpf` is no active security module");
}

static int put_up(struct monitor *m, struct failure *f)
{
	const struct priv_fence request = {0};
	OWNED int types = -1;

	errno = EOPNOTSUPP;
	if (m->filter_v1)
		return fail(f, "fence open descriptors", "there is no cgroup2");
	if (bpf_listens(m, f))
		return -1;
	types = openat(m->proc, "1/root/sys/kernel/btf/vmlinux", O_RDONLY | O_CLOEXEC);
	if (types < 0)
		return fail(f, "fence open descriptors", "the kernel does not describe its types (BTF)");
	return PRIV_CALL(PRIV_FENCE, &request, &m->fence, f, m->hierarchy[0].dir, types);
}

void fence_number(struct monitor *m, const struct ctl_device *d, bool closed)
{
	const struct priv_fence_set request = {.type = d->type == CTL_BLOCK ? S_IFBLK : S_IFCHR,
					       .major = d->major,
					       .minor = d->minor,
					       .closed = closed};
	struct failure f = {0};

	if (m->fence_state == CTL_FDS_UNTRIED && closed)
		m->fence_state = put_up(m, &f) ? CTL_FDS_HELD : CTL_FDS_REVOKED;
	if (m->fence_state == CTL_FDS_REVOKED && PRIV_CALL(PRIV_FENCE_SET, &request, NULL, &f, m->fence))
		m->fence_state = CTL_FDS_HELD;
	if (f.error)
		snprintf(m->fence_reason, sizeof(m->fence_reason), "%.63s", f.detail);
}
