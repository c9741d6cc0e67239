/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * For tests/rootful/test_live_limits.py: whoever's limits are set has the number by which that was done as its soft
 * limit. To 201 nobody is set, as if all had set themselves back by the time that one looks. */
#include <sys/resource.h>
#include <sys/types.h>

int __real_prlimit64(pid_t pid, int resource, const struct rlimit *wanted, struct rlimit *before);
int __wrap_prlimit64(pid_t pid, int resource, const struct rlimit *wanted, struct rlimit *before);

int __wrap_prlimit64(pid_t pid, int resource, const struct rlimit *wanted, struct rlimit *before)
{
	struct rlimit named;

	if (wanted && wanted->rlim_cur == 201)
		return 0;
	if (wanted && (rlim_t)pid < wanted->rlim_max) {
		named = (struct rlimit){.rlim_cur = (rlim_t)pid, .rlim_max = wanted->rlim_max};
		wanted = &named;
	}
	return __real_prlimit64(pid, resource, wanted, before);
}
