/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * What our BPF programs share: instructions by hand, and a hash map of device numbers. */
#pragma once
#include "common.h"

#include <linux/bpf.h>

#define INSN(op, dst, src, offset, value) \
	((struct bpf_insn){.code = (op), .dst_reg = (dst), .src_reg = (src), .off = (offset), .imm = (value)})

struct device_key {
	uint32_t type, major, minor; /* BPF_DEVCG_DEV_* */
};

static inline int sys_bpf(int command, union bpf_attr *attr)
{
	return (int)syscall(SYS_bpf, command, attr, sizeof(*attr));
}

/* Programs only read it. */
static inline int device_map_create(const char *name)
{
	union bpf_attr attr = {.map_type = BPF_MAP_TYPE_HASH,
			       .key_size = sizeof(struct device_key),
			       .value_size = sizeof(uint32_t),
			       .max_entries = 1024,
			       .map_flags = BPF_F_NO_PREALLOC | BPF_F_RDONLY_PROG};

	snprintf(attr.map_name, sizeof(attr.map_name), "%s", name);
	return sys_bpf(BPF_MAP_CREATE, &attr);
}

/* Nothing but what device_map_create() made: of another map's size the kernel would read more of our stack than there
 * is. */
static inline bool device_map_is(int fd, const char *name)
{
	struct bpf_map_info info = {0};
	union bpf_attr attr = {
		.info = {.bpf_fd = (uint32_t)fd, .info_len = sizeof(info), .info = (uint64_t)(uintptr_t)&info}};

	return !sys_bpf(BPF_OBJ_GET_INFO_BY_FD, &attr) && info.type == BPF_MAP_TYPE_HASH &&
	       info.key_size == sizeof(struct device_key) && info.value_size == sizeof(uint32_t) &&
	       !strcmp(info.name, name);
}

static inline int device_map_set(int map, struct device_key key, uint32_t value)
{
	union bpf_attr attr = {
		.map_fd = (uint32_t)map, .key = (uint64_t)(uintptr_t)&key, .value = (uint64_t)(uintptr_t)&value};

	return sys_bpf(BPF_MAP_UPDATE_ELEM, &attr);
}

static inline int device_map_delete(int map, struct device_key key)
{
	union bpf_attr attr = {.map_fd = (uint32_t)map, .key = (uint64_t)(uintptr_t)&key};

	return sys_bpf(BPF_MAP_DELETE_ELEM, &attr);
}
