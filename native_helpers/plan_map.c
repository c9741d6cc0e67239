/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * What a plan's id maps say. */
#include "plan.h"

uint32_t plan_map(const struct id_map *map, size_t count, uint32_t inside)
{
	for (size_t i = 0; i < count; i++)
		if (inside >= map[i].inside && inside - map[i].inside < map[i].count)
			return map[i].outside + (inside - map[i].inside);
	return UINT32_MAX;
}

bool plan_has(const struct id_map *map, size_t count, uint32_t outside)
{
	for (size_t i = 0; i < count; i++)
		if (outside >= map[i].outside && outside - map[i].outside < map[i].count)
			return true;
	return false;
}

uint32_t plan_unmapped(const struct id_map *map, size_t count)
{
	uint32_t candidate = 0;

	/* Root first: nobody on the host gains anything by it. */
	for (size_t i = 0; i < count; i++)
		if (candidate >= map[i].outside && candidate - map[i].outside < map[i].count) {
			candidate = map[i].outside + map[i].count;
			i = (size_t)-1;
		}
	return candidate;
}

bool plan_variable(const char *text)
{
	size_t length = strcspn(text, "=");

	return length && !(text[0] >= '0' && text[0] <= '9') &&
	       strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_") == length;
}
