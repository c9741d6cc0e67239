/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Only in sanitizer builds. A helper has an empty environment, gives up its standard descriptors, closes all others and
 * changes its root: no log path and no descriptor lasts as long as it does. So what the sanitizers say goes into a
 * file that is mapped before main(): 8 bytes of how much there is, then the text. The test truncates and reads it. */
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SIZE (1 << 20)

static struct log {
	uint64_t used;
	char text[SIZE - sizeof(uint64_t)];
} * report;

/* The sanitizers' own hooks, declared in none of the compiler's headers. */
void __sanitizer_on_print(const char *text);
const char *__asan_default_options(void);
const char *__ubsan_default_options(void);

__attribute__((constructor)) static void open_report(void)
{
	int fd = open(SANITIZER_REPORT, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	void *map = MAP_FAILED;

	if (fd >= 0 && !ftruncate(fd, SIZE))
		map = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (map != MAP_FAILED)
		report = map;
	close(fd);
}

void __sanitizer_on_print(const char *text)
{
	size_t length = strlen(text);
	uint64_t at = report ? __atomic_fetch_add(&report->used, length, __ATOMIC_RELAXED) : 0;

	if (report && at + length <= sizeof(report->text))
		memcpy(report->text + at, text, length);
}

/* The search for leaks starts a helper of its own, which must be in the program's pid namespace and see its /proc: that
 * leaves out the monitor, in its instance's root, and ctrmgr-exec, whose children are born in the instance. */
const char *__asan_default_options(void)
{
#ifdef SANITIZER_LEAKS
	return "detect_leaks=1:detect_stack_use_after_return=1:strict_string_checks=1";
#else
	return "detect_leaks=0:detect_stack_use_after_return=1:strict_string_checks=1";
#endif
}

const char *__ubsan_default_options(void)
{
	return "print_stacktrace=1";
}
