/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * NVIDIA's management library as far as ctrmgr uses it, with the names, structures and return codes of nvml.h of
 * CUDA 13.4. One GPU, at 0000:18:00.0, with 1 GiB; one in MIG mode, at 0000:9a:00.0, with the slice gi1/ci0 of 512 MiB.
 * What is set is appended to the file $NVML_STATE, a line each: `ADDRESS CGROUP SOFT HARD`; $NVML_USED is what a cgroup
 * uses. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))
enum { SUCCESS = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6 };
typedef struct gpu {
	const char *address;
	int mig, gi, ci;
	unsigned long long size;
} * device;
struct memory {
	unsigned long long total, free, used;
};
struct set_limits {
	const char *name_space;
	unsigned long long soft, hard;
};
struct get_limits {
	const char *name_space;
	unsigned long long soft, hard, used;
};

static struct gpu gpus[] = {{"0000:18:00.0", 0, 0, 0, 1ULL << 30}, {"0000:9a:00.0", 1, 0, 0, 1ULL << 30}};
static struct gpu slice = {"0000:9a:00.0", 1, 1, 0, 512ULL << 20};

API int nvmlInitWithFlags(unsigned flags)
{
	(void)flags;
	return SUCCESS;
}

API int nvmlShutdown(void)
{
	return SUCCESS;
}

API const char *nvmlErrorString(int code)
{
	return code == NOT_FOUND ? "Not Found" : code == NOT_SUPPORTED ? "Not Supported" : "Unknown Error";
}

API int nvmlSystemGetDriverVersion(char *version, unsigned length)
{
	snprintf(version, length, "550.54.15");
	return SUCCESS;
}

API int nvmlDeviceGetHandleByPciBusId_v2(const char *address, device *found)
{
	for (size_t i = 0; i < sizeof(gpus) / sizeof(gpus[0]); i++)
		if (!strcmp(gpus[i].address, address)) {
			*found = &gpus[i];
			return SUCCESS;
		}
	return NOT_FOUND;
}

API int nvmlDeviceGetMemoryInfo(device d, struct memory *memory)
{
	*memory = (struct memory){.total = d->size, .free = d->size};
	return SUCCESS;
}

API int nvmlDeviceGetMigMode(device d, unsigned *now, unsigned *pending)
{
	*now = *pending = (unsigned)d->mig;
	return SUCCESS;
}

API int nvmlDeviceGetMaxMigDeviceCount(device d, unsigned *count)
{
	*count = d->mig ? 7 : 0;
	return SUCCESS;
}

API int nvmlDeviceGetMigDeviceHandleByIndex(device d, unsigned index, device *found)
{
	if (!d->mig || index != 3)
		return NOT_FOUND;
	*found = &slice;
	return SUCCESS;
}

API int nvmlDeviceGetGpuInstanceId(device d, unsigned *id)
{
	*id = (unsigned)d->gi;
	return SUCCESS;
}

API int nvmlDeviceGetComputeInstanceId(device d, unsigned *id)
{
	*id = (unsigned)d->ci;
	return SUCCESS;
}

#ifndef OLD
API int nvmlDeviceSetMemoryLimits_v1(device d, struct set_limits *limits)
{
	FILE *file = fopen(getenv("NVML_STATE"), "a");

	if (!file)
		return NOT_SUPPORTED;
	fprintf(file, "%s %s %llu %llu\n", d->address, limits->name_space, limits->soft, limits->hard);
	fclose(file);
	return SUCCESS;
}

API int nvmlDeviceGetMemoryLimits_v1(device d, struct get_limits *limits)
{
	FILE *file = fopen(getenv("NVML_STATE"), "r");
	char address[64], cgroup[256];
	unsigned long long soft, hard;
	int result = NOT_FOUND;

	while (file && fscanf(file, "%63s %255s %llu %llu", address, cgroup, &soft, &hard) == 4)
		if (!strcmp(address, d->address) && !strcmp(cgroup, limits->name_space)) {
			limits->soft = soft;
			limits->hard = hard;
			limits->used = strtoull(getenv("NVML_USED") ? getenv("NVML_USED") : "0", NULL, 10);
			result = SUCCESS;
		}
	if (file)
		fclose(file);
	return result;
}
#endif
