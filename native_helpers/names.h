/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * The names in a directory, one after the other. Not by readdir(3), whose buffer is a third of what a monitor may have.
 */
#pragma once
#include <dirent.h>
#include <sys/types.h>

struct names {
	int folder; /* open for reading; -1 has no names */
	ssize_t size, at;
	_Alignas(struct dirent64) char entries[2048];
};
#define NAMES(fd) ((struct names){.folder = (fd)})

/* NULL: there are no more. */
const struct dirent64 *names_next(struct names *n);
