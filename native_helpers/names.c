/* SPDX-License-Identifier: GPL-3.0-or-later */
#include "names.h"

#include <sys/syscall.h>
#include <unistd.h>

const struct dirent64 *names_next(struct names *n)
{
	const struct dirent64 *entry;

	if (n->at >= n->size) {
		n->at = 0;
		n->size = n->folder < 0 ? -1 : syscall(SYS_getdents64, n->folder, n->entries, sizeof(n->entries));
	}
	if (n->size <= 0)
		return NULL;
	entry = (const struct dirent64 *)(const void *)(n->entries + n->at);
	n->at += entry->d_reclen;
	return entry;
}
