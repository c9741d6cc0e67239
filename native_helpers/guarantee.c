/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Guarantees of memory, the host's and devices': the cgroup that all instances are in has the sum of theirs. */
#include "monitor.h"
#include "priv.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/file.h>
#include <time.h>

/* What the cgroups below `parent` have together of a region, or of what has none (""); UINT64_MAX is all of it. */
static uint64_t guaranteed(int parent, const char *file, const char *region)
{
	int fd = openat(parent, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *list = fd < 0 ? NULL : fdopendir(fd);
	size_t length = strlen(region);
	struct dirent *entry;
	uint64_t sum = 0;

	while (list && (entry = readdir(list))) {
		char text[2048];
		OWNED int below =
			entry->d_type != DT_DIR || entry->d_name[0] == '.'
				? -1
				: openat(parent, entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

		if (below < 0 || read_at(below, file, text, sizeof(text)) <= 0)
			continue;
		for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
			if (!strncmp(line, region, length) && (!length || line[length] == ' ')) {
				const char *value = line + length + !!length;
				uint64_t own = *value == 'm' ? UINT64_MAX : strtoull(value, NULL, 10);

				sum = sum + own < sum ? UINT64_MAX : sum + own;
			}
	}
	if (list)
		closedir(list);
	return sum;
}

static const char *const guarantees[] = {"memory.min", "memory.low", "dmem.min", "dmem.low"};

/* The kernel guarantees memory only as far as the cgroup above has it, too: the one that all instances are in
 * has what they have together. One that had all of it would share it out to those without a guarantee. */
static void hand_up(int parent, const char *file)
{
	struct priv_cgroup_write write = {0};
	struct failure ignored;
	char text[2048], *next;
	struct timespec pause = {.tv_nsec = 2000000};
	OWNED int lock = openat(parent, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	/* other monitors are soon done; whoever else may read the folder can lock it, and is not waited for */
	for (int tries = 0; lock >= 0 && tries < 50 && flock(lock, LOCK_EX | LOCK_NB); tries++)
		nanosleep(&pause, NULL);
	if (lock < 0 || read_at(parent, file, text, sizeof(text)) <= 0)
		return;
	snprintf(write.file, sizeof(write.file), "%s", file);
	for (char *line = text; *line; line = next) {
		char *value = strchr(line, ' ');
		size_t length;
		uint64_t sum;

		next = line + strcspn(line, "\n");
		if (*next)
			*next++ = '\0';
		if (value)
			*value++ = '\0';
		else
			value = line;
		sum = guaranteed(parent, file, value == line ? "" : line);
		snprintf(write.value, sizeof(write.value), value == line ? "" : "%s ", line);
		length = strlen(write.value);
		if (sum == UINT64_MAX)
			snprintf(write.value + length, sizeof(write.value) - length, "max");
		else
			snprintf(write.value + length, sizeof(write.value) - length, "%" PRIu64, sum);
		if (sum == UINT64_MAX ? value[0] != 'm' : value[0] == 'm' || strtoull(value, NULL, 10) != sum)
			PRIV_CALL(PRIV_CGROUP_WRITE, &write, NULL, &ignored, parent);
	}
}

void guarantee_changed(int parent, const char *file)
{
	for (size_t i = 0; i < ARRAY_SIZE(guarantees); i++)
		if (!strcmp(file, guarantees[i]))
			hand_up(parent, file);
}

/* Most have none, and then there is none above. */
static bool is_some(const char *text)
{
	for (const char *at = text; *at; at++)
		if ((at == text || at[-1] == ' ') && (*at == 'm' || (*at >= '1' && *at <= '9')))
			return true;
	return false;
}

void guarantee_gone(int parent)
{
	char text[2048];

	for (size_t i = 0; i < ARRAY_SIZE(guarantees); i++)
		if (read_at(parent, guarantees[i], text, sizeof(text)) > 0 && is_some(text))
			hand_up(parent, guarantees[i]);
}
