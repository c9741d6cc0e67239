/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * GUIDs of InfiniBand's virtual functions, put back when the run has ended, as ctrmgr/backend/guids.py does it: its
 * notes in the run directory say what they were at first. What cannot be done here waits for the next command. */
#include "flat.h"
#include "monitor.h"

#include <dirent.h>
#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/file.h>
#include <time.h>

#define FOLDER     "../.guids"
#define FUNCTIONS  "bus/pci/devices"
#define ADDRESS    12  /* `0000:19:00.3` */
#define VIRTUAL    256 /* of one physical function */
#define INFINIBAND "32"
#define TRIES      50 /* of 20 ms, until nobody else is at the notes */
#define BACK_MS    5000

static int host_sysfs(const struct monitor *m)
{
	OWNED int own = openat(m->proc, "self/ns/mnt", O_RDONLY | O_CLOEXEC);
	int sysfs;

	if (own < 0 || setns(m->host_mounts, CLONE_NEWNS))
		return -1;
	sysfs = open("/sys", O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (setns(own, CLONE_NEWNS))
		abort(); /* nothing may be done for an instance from the host's tree */
	return sysfs;
}

static DIR *list(int dir, const char *path)
{
	int fd = openat(dir, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *found = fd < 0 ? NULL : fdopendir(fd);

	if (!found)
		close_fd(&fd);
	return found;
}

/* The last word of where a link leads. */
static bool leads_to(int dir, const char *path, char *name, size_t size)
{
	char target[PRIV_PATH];
	ssize_t length = readlinkat(dir, path, target, sizeof(target) - 1);
	const char *slash;

	target[length > 0 ? length : 0] = '\0';
	slash = strrchr(target, '/');
	return length > 0 && snprintf(name, size, "%s", slash ? slash + 1 : target) < (int)size;
}

/* Which of its physical function's it is, and by which link that is told. */
static bool find(int sysfs, const char *address, struct priv_guids *r)
{
	char path[PRIV_PATH], name[PRIV_NAME], text[16];
	struct dirent *entry;
	bool found = false;
	DIR *links;

	snprintf(path, sizeof(path), FUNCTIONS "/%s/driver", address);
	if (!leads_to(sysfs, path, r->driver, sizeof(r->driver)))
		return false;
	for (r->function = 0; !found && r->function < VIRTUAL; r->function += !found) {
		snprintf(path, sizeof(path), FUNCTIONS "/%s/physfn/virtfn%u", address, r->function);
		if (!leads_to(sysfs, path, name, sizeof(name)))
			return false;
		found = !strcmp(name, address);
	}
	snprintf(path, sizeof(path), FUNCTIONS "/%s/physfn/net", address);
	links = found ? list(sysfs, path) : NULL;
	while (links && !r->link && (entry = readdir(links))) {
		snprintf(name, sizeof(name), "%.15s/type", entry->d_name);
		if (read_at(dirfd(links), name, text, sizeof(text)) <= 0 || strcmp(text, INFINIBAND "\n"))
			continue;
		snprintf(name, sizeof(name), "%.15s/ifindex", entry->d_name);
		if (read_at(dirfd(links), name, text, sizeof(text)) > 0)
			r->link = (uint32_t)strtoul(text, NULL, 10);
	}
	if (links)
		closedir(links);
	return r->link;
}

static bool guid(const char *text, uint64_t *value)
{
	unsigned byte[8];
	int used = 0;

	*value = 0;
	if (sscanf(text, "%2x:%2x:%2x:%2x:%2x:%2x:%2x:%2x%n", &byte[0], &byte[1], &byte[2], &byte[3], &byte[4],
		   &byte[5], &byte[6], &byte[7], &used) != 8 ||
	    text[used])
		return false;
	for (size_t i = 0; i < ARRAY_SIZE(byte); i++)
		*value = *value << 8 | byte[i];
	return true;
}

/* How many names programs know it by: its driver, and udev, give them anew. */
static unsigned names(int sysfs, const char *address)
{
	static const char *const kinds[] = {"net", "infiniband", "infiniband_verbs", "infiniband_mad"};
	unsigned count = 0;

	for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
		char path[PRIV_PATH];
		DIR *found;

		snprintf(path, sizeof(path), FUNCTIONS "/%s/%s", address, kinds[i]);
		for (found = list(sysfs, path); found && readdir(found);)
			count++;
		if (found)
			closedir(found);
	}
	return count;
}

/* Without a driver that takes zeros, what had none has this. */
static bool put_back(int sysfs, struct priv_guids *r)
{
	unsigned before = names(sysfs, r->address);
	int64_t until = now_ms() + BACK_MS;
	struct failure ignored;

	if (PRIV_CALL(PRIV_GUIDS, r, NULL, &ignored, sysfs)) {
		r->node = r->node ? r->node : UINT64_MAX;
		r->port = r->port ? r->port : UINT64_MAX;
		if (PRIV_CALL(PRIV_GUIDS, r, NULL, &ignored, sysfs))
			return false;
	}
	while (names(sysfs, r->address) < before && now_ms() < until)
		nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
	return true;
}

void guids_return(struct monitor *m)
{
	DIR *notes = list(FD_RUN, FOLDER);
	OWNED int sysfs = notes ? host_sysfs(m) : -1;
	struct dirent *entry;
	int tries = 0;

	/* whoever has the notes may be waiting for us */
	while (notes && flock(dirfd(notes), LOCK_EX | LOCK_NB) && ++tries < TRIES)
		nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
	while (sysfs >= 0 && tries < TRIES && (entry = readdir(notes))) {
		char text[512], *cursor = text, *field[4];
		struct priv_guids r = {0};

		if (strlen(entry->d_name) != ADDRESS || read_at(dirfd(notes), entry->d_name, text, sizeof(text)) <= 0 ||
		    flat_row(&cursor, field, ARRAY_SIZE(field)) != ARRAY_SIZE(field) ||
		    strcmp(field[0], m->plan.name) || !guid(field[2], &r.node) || !guid(field[3], &r.port))
			continue;
		snprintf(r.address, sizeof(r.address), "%.*s", ADDRESS, entry->d_name);
		if (find(sysfs, r.address, &r) && put_back(sysfs, &r))
			unlinkat(dirfd(notes), entry->d_name, 0);
	}
	if (notes)
		closedir(notes);
}
