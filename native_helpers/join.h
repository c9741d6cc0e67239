/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * The way to a running instance: its monitor's descriptors, and a child in its cgroup. */
#pragma once
#include "exec.h"

/* One message with at most `max` descriptors. Descriptors beyond that are closed by the kernel.
 * Returns its length, 0 at the end, -1 with errno. Missing descriptors stay as they were. */
ssize_t receive_descriptors(int socket, void *message, size_t size, int fds[], size_t max);

/* Asks the monitor at `control`. NULL, or (errno set) what could not be done. */
const char *join_ask(const char *control, struct instance *out);

/* The child, which is in the cgroup now: of a class that was given to the instance since, it is told; and one that
 * comes later finds it. False with errno. */
bool join_renew(struct instance *i);

/* A child born into a frozen cgroup would not even start, and its parent wait for ever. */
bool join_frozen(const struct instance *i);

/* fork() into the instance's cgroup2 and pid namespace. */
pid_t join_fork(const struct instance *i, int *pidfd);

/* The child has ended: what join_fork() had to make for it alone is removed. */
void join_end(void);
