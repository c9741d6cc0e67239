/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * ctrmgr-hook, in two files. */
#pragma once

/* Says why on stderr, with errno where there is one, and ends. */
__attribute__((format(printf, 1, 2))) _Noreturn void die(const char *format, ...);

/* hook_run.c: a program of the instance's own, which an administrator has allowed: `SECONDS PATH COUNT ARGUMENT…
 * VARIABLE…`. Ends us when it fails. */
void run_program(const char *instance, const char *device, char *const *word, int words);
