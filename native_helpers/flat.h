/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Flat files: lines of tab-separated fields, with \\, \t and \n for backslash, tab and newline. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

/* Cuts off what stands after the last line `end`: that does not count (yet). False: there is no such line, the text is
 * cut off. */
bool flat_counted(char *text);

/* Cuts the next line out of *cursor (the text is changed in place) into at most `max` fields and
 * moves the cursor on. Returns the number of fields, 0 at the end, -EINVAL for a line with a
 * wrong escape or too many fields. Empty lines are passed over. */
int flat_row(char **cursor, char *field[], size_t max);
