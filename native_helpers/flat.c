/* SPDX-License-Identifier: GPL-3.0-or-later */
#include "flat.h"

#include <errno.h>
#include <string.h>

/* One field, unescaped in place; stops on the tab, newline or end that ended it. */
static char *cut(char **cursor, char *end)
{
	char *start = *cursor, *in = start, *out = start;

	while (*in && *in != '\t' && *in != '\n') {
		if (*in == '\\') {
			in++;
			if (*in != '\\' && *in != 't' && *in != 'n')
				return NULL;
			*out++ = *in == 't' ? '\t' : *in == 'n' ? '\n' : '\\';
			in++;
			continue;
		}
		*out++ = *in++;
	}
	*end = *in;
	*cursor = *in ? in + 1 : in;
	*out = '\0';
	return start;
}

bool flat_counted(char *text)
{
	static const char END[] = "\nend\n";
	char *last = NULL;

	for (char *found = text; (found = strstr(found, END)); found++)
		last = found;
	if (last)
		last[sizeof(END) - 1] = '\0';
	return last;
}

int flat_row(char **cursor, char *field[], size_t max)
{
	size_t count = 0;
	char end;

	while (**cursor == '\n')
		(*cursor)++;
	if (!**cursor)
		return 0;
	do {
		if (count == max || !(field[count++] = cut(cursor, &end)))
			return -EINVAL;
	} while (end == '\t');
	return (int)count;
}
