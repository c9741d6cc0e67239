/* SPDX-License-Identifier: GPL-3.0-or-later */
#pragma once
#include <stdbool.h>

/* Whether a class whose `schemata` these are has what a line asks for: in another order maybe, with other zeros in
 * front, and bandwidth rounded up to `step` as the kernel does. */
bool schemata_hold(const char *schemata, const char *wanted, unsigned step);
