/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * What the rows of a plan are made of, and those of devices. */
#pragma once
#include "plan.h"

#include <stdlib.h>

static inline bool number(const char *text, int base, uint64_t max, uint64_t *out)
{
	char *end;

	if (text[0] < '0' || text[0] > '9')
		return false;
	errno = 0;
	*out = strtoull(text, &end, base);
	return !errno && !*end && *out <= max;
}

static inline bool number32(const char *text, int base, uint32_t *out)
{
	uint64_t wide;

	if (!number(text, base, UINT32_MAX, &wide))
		return false;
	*out = (uint32_t)wide;
	return true;
}

static inline bool word(const char *text, const char *const *words, unsigned *index)
{
	for (*index = 0; words[*index]; ++*index)
		if (!strcmp(text, words[*index]))
			return true;
	return false;
}

static inline bool plain_below(const char *path, const char *folder, size_t size)
{
	size_t length = strlen(folder);

	return !strncmp(path, folder, length) && plain_path(path + length, size - length);
}

/* plan_devices.c. 1: known and right; 0: wrong; -1: unknown. `count` includes the key. */
int plan_device_row(struct plan *p, char **field, size_t count);
