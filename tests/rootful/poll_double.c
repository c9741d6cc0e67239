/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * For tests/rootful/test_hostile_start.py: who would wait for minutes does not wait for one second. */
#include <poll.h>

int __real_poll(struct pollfd *fds, nfds_t count, int ms);
int __wrap_poll(struct pollfd *fds, nfds_t count, int ms);

int __wrap_poll(struct pollfd *fds, nfds_t count, int ms)
{
	return __real_poll(fds, count, ms > 120000 ? 500 : ms);
}
