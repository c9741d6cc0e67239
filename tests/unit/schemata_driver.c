/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * native_helpers/schemata.c: `SCHEMATA WANTED STEP`; ends with 0 if a class that has the first holds the second. */
#include "schemata.h"

#include <stdlib.h>

int main(int argc, char **argv)
{
	return argc == 4 ? !schemata_hold(argv[1], argv[2], (unsigned)atoi(argv[3])) : 2;
}
