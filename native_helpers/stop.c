/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Signals to init, and how it is asked to end. */
#include "monitor.h"

#include <signal.h>
#include <stdlib.h>

#define ASK_MS 50

/* Init is our child and not yet reaped: its number is nobody else's, where a pidfd cannot be signalled. */
int stop_signal(const struct monitor *m, int signal)
{
	if (!sys_pidfd_send_signal(m->pidfd, signal))
		return 0;
	return (errno == ENOSYS || errno == EPERM) && m->init > 0 ? kill(m->init, signal) : -1;
}

/* Of what init neither catches nor blocks, the kernel drops all but SIGKILL and SIGSTOP: pid_namespaces(7). */
static bool is_heard(const struct monitor *m, int signal)
{
	static const char *const masks[] = {"\nSigBlk:", "\nSigCgt:"};
	char path[32], text[4096];
	unsigned long long heard = 0;

	snprintf(path, sizeof(path), "%d/status", m->init);
	if (read_at(m->proc, path, text, sizeof(text)) <= 0)
		return true;
	for (size_t i = 0; i < ARRAY_SIZE(masks); i++) {
		const char *mask = strstr(text, masks[i]);

		if (!mask)
			return true;
		heard |= strtoull(mask + strlen(masks[i]), NULL, 16);
	}
	return heard >> (signal - 1) & 1;
}

/* One that has only just begun does not listen yet, and is asked until it does. */
void stop_ask(struct monitor *m)
{
	m->ask_at = is_heard(m, m->plan.halt_signal) ? 0 : now_ms() + ASK_MS;
	(void)stop_signal(m, m->plan.halt_signal);
}

void stop_begin(struct monitor *m, int timeout_ms)
{
	m->stopping = true;
	write_at(m->hierarchy[0].dir, "cgroup.freeze", "0"); /* a frozen init could not hear us */
	m->stop_at = now_ms() + (timeout_ms > 0 ? timeout_ms : (int64_t)m->plan.stop_timeout * 1000);
	stop_ask(m);
}
