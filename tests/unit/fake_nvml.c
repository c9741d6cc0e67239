// SPDX-License-Identifier: GPL-3.0-or-later
// A libnvidia-ml.so.1 with the calls that divide a GPU and their binary interface (nvml.h 12): one H100 with seven
// slices. What it was told is in $FAKE_NVML/instances, one line each, so that it outlives who told it, as it does in a
// card; the driver's files in /proc and its nodes are made below $FAKE_NVML/root. $FAKE_NVML/busy makes destroying
// fail, $FAKE_NVML/off is MIG mode off, $FAKE_NVML/pending what a reset would make of it. $FAKE_NVML/open is a program
// that has the GPU open, $FAKE_NVML/passed a machine that cannot reset it.
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
	OK = 0,
	INVALID = 2,
	NOT_SUPPORTED = 3,
	NO_PERMISSION = 4,
	NOT_FOUND = 6,
	SHORT = 7,
	RESET_REQUIRED = 16,
	IN_USE = 19,
	NO_ROOM = 23
};
typedef struct {
	unsigned start, size;
} Place;
typedef struct {
	unsigned version, id, p2p, slices, instances, cores, copy, decoders, encoders, jpeg, ofa;
	unsigned long long memory;
	char name[96];
} GiProfile;
typedef struct {
	unsigned version, id, slices, instances, cores, copy, decoders, encoders, jpeg, ofa;
	char name[96];
} CiProfile;
typedef struct {
	void *device;
	unsigned id, profile;
	Place place;
} GiInfo;
typedef struct {
	void *device, *gi;
	unsigned id, profile;
	Place place;
} CiInfo;

static const struct {
	unsigned number, id, slices, size, count, cores, memory;
	const char *name;
} profiles[] = {
	{0, 19, 1, 1, 7, 16, 10112, "MIG 1g.10gb"},
	{1, 14, 2, 2, 3, 32, 20224, "MIG 2g.20gb"},
	{2, 9, 3, 4, 2, 60, 40448, "MIG 3g.40gb"},
	{4, 0, 7, 8, 1, 132, 81152, "MIG 7g.80gb"},
};
#define COUNT (sizeof profiles / sizeof *profiles)
static struct {
	unsigned id, profile, start, size;
	int ci;
} gis[16];
static unsigned have;
static int device; // its address is the handle

static const char *path(const char *name)
{
	static char text[600];
	snprintf(text, sizeof text, "%s/%s", getenv("FAKE_NVML"), name);
	return text;
}

static void load(void)
{
	FILE *file = fopen(path("instances"), "re");
	have = 0;
	while (file && have < 16 &&
	       fscanf(file, "%u %u %u %u %d\n", &gis[have].id, &gis[have].profile, &gis[have].start, &gis[have].size,
		      &gis[have].ci) == 5)
		have++;
	if (file)
		fclose(file);
}

static void save(void)
{
	FILE *file = fopen(path("instances.new"), "we");
	char from[600];
	for (unsigned at = 0; at < have; at++)
		fprintf(file, "%u %u %u %u %d\n", gis[at].id, gis[at].profile, gis[at].start, gis[at].size, gis[at].ci);
	fclose(file);
	strcpy(from, path("instances.new"));
	rename(from, path("instances"));
}

static int find(void *handle)
{
	load();
	for (unsigned at = 0; at < have; at++)
		if (gis[at].id + 1 == (size_t)handle % 1000)
			return (int)at;
	return -1;
}

static unsigned slot(unsigned id)
{
	for (unsigned at = 0; at < COUNT; at++)
		if (profiles[at].id == id)
			return at;
	return COUNT;
}

static void write_line(const char *name, const char *text)
{
	FILE *file = fopen(path(name), "we");
	fputs(text, file);
	fclose(file);
}

static void capability(unsigned gi, int ci)
{
	char name[200], text[100];
	unsigned minor = 3 + gi * 9 + (ci >= 0 ? 1 : 0);
	snprintf(name, sizeof name, "root/proc/driver/nvidia/capabilities/gpu0/mig/gi%u", gi);
	mkdir(path(name), 0755);
	if (ci >= 0) {
		snprintf(name, sizeof name, "root/proc/driver/nvidia/capabilities/gpu0/mig/gi%u/ci%d", gi, ci);
		mkdir(path(name), 0755);
	}
	strcat(name, "/access");
	snprintf(text, sizeof text, "DeviceFileMinor: %u\nDeviceFileMode: 292\nDeviceFileModify: 1\n", minor);
	write_line(name, text);
	snprintf(name, sizeof name, "root/dev/nvidia-caps/nvidia-cap%u", minor);
	snprintf(text, sizeof text, "236:%u\n", minor);
	write_line(name, text);
}

static void remove_capability(unsigned gi, int ci)
{
	char name[200];
	snprintf(name, sizeof name, "root/dev/nvidia-caps/nvidia-cap%u", 3 + gi * 9 + (ci >= 0 ? 1 : 0));
	unlink(path(name));
	if (ci >= 0)
		snprintf(name, sizeof name, "root/proc/driver/nvidia/capabilities/gpu0/mig/gi%u/ci%d/access", gi, ci);
	else
		snprintf(name, sizeof name, "root/proc/driver/nvidia/capabilities/gpu0/mig/gi%u/access", gi);
	unlink(path(name));
	*strrchr(name, '/') = 0;
	rmdir(path(name));
}

static void step(const char *name)
{
	const char *wanted = getenv("FAKE_NVML_KILL");
	if (wanted && !strcmp(wanted, name))
		_exit(137); // nobody comes to clean up
}

int nvmlInitWithFlags(unsigned flags)
{
	return flags ? INVALID : OK;
}
int nvmlShutdown(void)
{
	return OK;
}
const char *nvmlErrorString(int code)
{
	return code == IN_USE ? "In use by another client" : "some error";
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **handle)
{
	*handle = &device;
	return strcmp(id, "0000:18:00.0") ? NOT_FOUND : OK;
}

int nvmlDeviceGetMigMode(void *gpu, unsigned *current, unsigned *pending)
{
	*current = *pending = access(path("off"), F_OK) != 0;
	if (access(path("pending"), F_OK) == 0)
		*pending = !*current;
	return gpu == &device ? OK : INVALID;
}

int nvmlDeviceSetMigMode(void *gpu, unsigned mode, int *activation)
{
	unsigned current, pending;
	if (gpu != &device || mode > 1 || nvmlDeviceGetMigMode(gpu, &current, &pending) != OK)
		return INVALID;
	if (access(path("user"), F_OK) == 0)
		return NO_PERMISSION;
	unlink(path("pending"));
	*activation = OK;
	if (mode == current)
		return OK;
	if (access(path("open"), F_OK) == 0 || access(path("passed"), F_OK) == 0) {
		*activation = access(path("open"), F_OK) == 0 ? IN_USE : RESET_REQUIRED;
		write_line("pending", "");
		return OK;
	}
	if (mode)
		unlink(path("off"));
	else
		write_line("off", "");
	return OK;
}

int nvmlDeviceGetMaxMigDeviceCount(void *gpu, unsigned *count)
{
	*count = 7;
	return gpu == &device ? OK : INVALID;
}

int nvmlDeviceGetGpuInstanceProfileInfoV(void *gpu, unsigned profile, GiProfile *info)
{
	if (gpu != &device || info->version != (sizeof *info | 2u << 24))
		return INVALID;
	for (unsigned at = 0; at < COUNT; at++)
		if (profiles[at].number == profile) {
			info->id = profiles[at].id;
			info->slices = profiles[at].slices;
			info->instances = profiles[at].count;
			info->cores = profiles[at].cores;
			info->copy = profiles[at].slices;
			info->decoders = profiles[at].slices;
			info->memory = profiles[at].memory;
			strcpy(info->name, profiles[at].name);
			return OK;
		}
	return NOT_SUPPORTED;
}

int nvmlDeviceGetGpuInstancePossiblePlacements_v2(void *gpu, unsigned profile, Place *places, unsigned *count)
{
	unsigned at = slot(profile), found = 0;
	if (gpu != &device || at == COUNT)
		return INVALID;
	for (unsigned start = 0; found < profiles[at].count; start += profiles[at].size)
		places[found++] = (Place){start, profiles[at].size};
	*count = found;
	return OK;
}

int nvmlDeviceCreateGpuInstanceWithPlacement(void *gpu, unsigned profile, const Place *place, void **handle)
{
	unsigned at = slot(profile), id = 1;
	if (gpu != &device || at == COUNT || place->size != profiles[at].size || place->start + place->size > 8)
		return INVALID;
	load();
	for (unsigned each = 0; each < have; each++)
		if (gis[each].start < place->start + place->size && place->start < gis[each].start + gis[each].size)
			return NO_ROOM;
	for (unsigned each = 0; each < have; each++)
		if (gis[each].id >= id)
			id = gis[each].id + 1;
	step("before-gi");
	gis[have].id = id, gis[have].profile = profile, gis[have].start = place->start, gis[have].size = place->size;
	gis[have++].ci = -1;
	save();
	capability(id, -1);
	step("after-gi");
	*handle = (void *)(size_t)(id + 1);
	return OK;
}

int nvmlDeviceGetGpuInstances(void *gpu, unsigned profile, void **handles, unsigned *count)
{
	unsigned found = 0;
	load();
	for (unsigned at = 0; at < have; at++)
		if (gis[at].profile == profile)
			handles[found++] = (void *)(size_t)(gis[at].id + 1);
	*count = found;
	return gpu == &device ? OK : INVALID;
}

int nvmlDeviceGetGpuInstanceById(void *gpu, unsigned id, void **handle)
{
	*handle = (void *)(size_t)(id + 1);
	return gpu == &device && find(*handle) >= 0 ? OK : NOT_FOUND;
}

int nvmlGpuInstanceGetInfo(void *gi, GiInfo *info)
{
	int at = find(gi);
	if (at < 0)
		return NOT_FOUND;
	*info = (GiInfo){&device, gis[at].id, gis[at].profile, {gis[at].start, gis[at].size}};
	return OK;
}

int nvmlGpuInstanceGetComputeInstanceProfileInfoV(void *gi, unsigned profile, unsigned engine, CiProfile *info)
{
	int at = find(gi);
	if (at < 0 || engine != 0 || info->version != (sizeof *info | 2u << 24))
		return INVALID;
	if (profile > 2 && profile != 4)
		return NOT_SUPPORTED;
	unsigned slices = profile == 4 ? 7 : profile + 1;
	if (slices > profiles[slot(gis[at].profile)].slices)
		return NOT_SUPPORTED;
	info->id = profile;
	info->slices = slices;
	return OK;
}

int nvmlGpuInstanceCreateComputeInstance(void *gi, unsigned profile, void **handle)
{
	int at = find(gi);
	unsigned slices = profile == 4 ? 7 : profile + 1;
	if (at < 0 || gis[at].ci >= 0 || slices != profiles[slot(gis[at].profile)].slices)
		return INVALID;
	gis[at].ci = 0;
	save();
	capability(gis[at].id, 0);
	step("after-ci");
	*handle = (void *)((size_t)gi + 1000);
	return OK;
}

int nvmlGpuInstanceGetComputeInstances(void *gi, unsigned profile, void **handles, unsigned *count)
{
	int at = find(gi);
	if (at < 0)
		return NOT_FOUND;
	unsigned slices = profile == 4 ? 7 : profile + 1;
	*count = gis[at].ci >= 0 && slices == profiles[slot(gis[at].profile)].slices;
	handles[0] = (void *)((size_t)gi + 1000);
	return OK;
}

int nvmlComputeInstanceGetInfo_v2(void *ci, CiInfo *info)
{
	int at = find(ci);
	if (at < 0 || gis[at].ci < 0)
		return NOT_FOUND;
	*info = (CiInfo){&device, (void *)((size_t)ci - 1000), (unsigned)gis[at].ci, 0, {0, 1}};
	return OK;
}

int nvmlComputeInstanceDestroy(void *ci)
{
	int at = find(ci);
	if (at < 0 || gis[at].ci < 0)
		return NOT_FOUND;
	if (access(path("busy"), F_OK) == 0)
		return IN_USE;
	remove_capability(gis[at].id, gis[at].ci);
	gis[at].ci = -1;
	save();
	step("ci-gone");
	return OK;
}

int nvmlGpuInstanceDestroy(void *gi)
{
	int at = find(gi);
	if (at < 0)
		return NOT_FOUND;
	if (gis[at].ci >= 0 || access(path("busy"), F_OK) == 0)
		return IN_USE;
	remove_capability(gis[at].id, -1);
	gis[at] = gis[--have];
	save();
	step("gi-gone");
	return OK;
}
