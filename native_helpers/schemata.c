/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * `schemata` of resctrl: lines such as `L3:0=f;1=ff0`, a resource and what a class has of it in each part of the
 * machine. */
#include "schemata.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static bool number(const char **at, int base, uint64_t *value)
{
	const char *from = *at + strspn(*at, " ");
	char *end;

	*value = strtoull(from, &end, base);
	*at = end + strspn(end, " ");
	return end != from;
}

static bool part(const char **at, int base, uint64_t *id, uint64_t *value)
{
	return number(at, 10, id) && *(*at)++ == '=' && number(at, base, value);
}

/* Behind the colon of the line with the same resource, or NULL. */
static const char *line_of(const char *schemata, const char *wanted, size_t length)
{
	for (const char *line = schemata; line && *line; line = strchr(line, '\n')) {
		line += strspn(line, " \n");
		if (!strncmp(line, wanted, length) && line[length] == ':')
			return line + length + 1;
	}
	return NULL;
}

static bool has(const char *line, int base, uint64_t id, uint64_t value)
{
	uint64_t found_id, found;

	for (; part(&line, base, &found_id, &found); line += *line == ';')
		if (found_id == id)
			return found == value;
	return false;
}

bool schemata_hold(const char *schemata, const char *wanted, unsigned step)
{
	size_t length = strcspn(wanted, ":");
	int base = wanted[0] == 'L' ? 16 : 10; /* masks of caches; shares of bandwidth */
	const char *line = line_of(schemata, wanted, length), *at = wanted + length;
	uint64_t id, value;

	if (!line || wanted[length] != ':')
		return false;
	do {
		at++;
		if (!part(&at, base, &id, &value) || (*at && *at != ';'))
			return false;
		if (base == 10 && step > 1)
			value = (value + step - 1) / step * step;
		if (!has(line, base, id, value))
			return false;
	} while (*at);
	return true;
}
