/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * The device filter: one program on the instance's cgroup2 that looks the device up in one hash map. Allowing or
 * denying a device while the instance runs is one map update, without a window in which there is no filter. Where
 * only cgroup v1 exists, its `devices` controller does the same by rules. */
#include "bpf.h"
#include "priv.h"

#include <sys/stat.h>

#define ANY    UINT32_MAX
#define FILTER "ctrmgr_devices" /* the map's name */

/* r6 = context; the key is built on the stack at r10-16; r7 = the access that is wanted. The lookups are, in turn: the
 * device itself, any minor of its major, any device of its type; each must allow every bit that is wanted. */
static int program_load(int map)
{
	struct bpf_insn p[64];
	union bpf_attr attr = {0};
	int n = 0;

	p[n++] = INSN(BPF_ALU64 | BPF_MOV | BPF_X, 6, 1, 0, 0);
	p[n++] = INSN(BPF_LDX | BPF_MEM | BPF_W, 7, 6, offsetof(struct bpf_cgroup_dev_ctx, access_type), 0);
	p[n++] = INSN(BPF_ALU64 | BPF_MOV | BPF_X, 2, 7, 0, 0);
	p[n++] = INSN(BPF_ALU64 | BPF_AND | BPF_K, 2, 0, 0, 0xffff);
	p[n++] = INSN(BPF_ALU64 | BPF_RSH | BPF_K, 7, 0, 0, 16);
	p[n++] = INSN(BPF_STX | BPF_MEM | BPF_W, 10, 2, -16, 0);
	p[n++] = INSN(BPF_LDX | BPF_MEM | BPF_W, 3, 6, offsetof(struct bpf_cgroup_dev_ctx, major), 0);
	p[n++] = INSN(BPF_STX | BPF_MEM | BPF_W, 10, 3, -12, 0);
	p[n++] = INSN(BPF_LDX | BPF_MEM | BPF_W, 3, 6, offsetof(struct bpf_cgroup_dev_ctx, minor), 0);
	p[n++] = INSN(BPF_STX | BPF_MEM | BPF_W, 10, 3, -8, 0);
	for (int lookup = 0; lookup < 3; lookup++) {
		if (lookup > 0)
			p[n++] = INSN(BPF_ST | BPF_MEM | BPF_W, 10, 0, lookup == 1 ? -8 : -12, -1);
		p[n++] = INSN(BPF_LD | BPF_DW | BPF_IMM, 1, BPF_PSEUDO_MAP_FD, 0, map);
		p[n++] = INSN(0, 0, 0, 0, 0);
		p[n++] = INSN(BPF_ALU64 | BPF_MOV | BPF_X, 2, 10, 0, 0);
		p[n++] = INSN(BPF_ALU64 | BPF_ADD | BPF_K, 2, 0, 0, -16);
		p[n++] = INSN(BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_map_lookup_elem);
		p[n++] = INSN(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 5, 0); /* not there: the next lookup */
		p[n++] = INSN(BPF_LDX | BPF_MEM | BPF_W, 1, 0, 0, 0);
		p[n++] = INSN(BPF_ALU64 | BPF_AND | BPF_X, 1, 7, 0, 0);
		p[n++] = INSN(BPF_JMP | BPF_JNE | BPF_X, 1, 7, 2, 0); /* not all of it: the next lookup */
		p[n++] = INSN(BPF_ALU64 | BPF_MOV | BPF_K, 0, 0, 0, 1);
		p[n++] = INSN(BPF_JMP | BPF_EXIT, 0, 0, 0, 0);
	}
	p[n++] = INSN(BPF_ALU64 | BPF_MOV | BPF_K, 0, 0, 0, 0);
	p[n++] = INSN(BPF_JMP | BPF_EXIT, 0, 0, 0, 0);
	attr.prog_type = BPF_PROG_TYPE_CGROUP_DEVICE;
	attr.expected_attach_type = BPF_CGROUP_DEVICE;
	attr.insn_cnt = (uint32_t)n;
	attr.insns = (uint64_t)(uintptr_t)p;
	attr.license = (uint64_t)(uintptr_t) "GPL";
	strcpy(attr.prog_name, "ctrmgr_devices");
	return sys_bpf(BPF_PROG_LOAD, &attr);
}

/* What every instance may open, mknod or not: the kernel's harmless nodes and terminals. */
static const struct device_key always[] = {
	{BPF_DEVCG_DEV_CHAR, 1, 3}, {BPF_DEVCG_DEV_CHAR, 1, 5}, {BPF_DEVCG_DEV_CHAR, 1, 7},
	{BPF_DEVCG_DEV_CHAR, 1, 8}, {BPF_DEVCG_DEV_CHAR, 1, 9}, {BPF_DEVCG_DEV_CHAR, 5, 0},
	{BPF_DEVCG_DEV_CHAR, 5, 1}, {BPF_DEVCG_DEV_CHAR, 5, 2}, {BPF_DEVCG_DEV_CHAR, 136, ANY},
};

static int v1_rule(int cgroup, const char *file, struct device_key key, uint32_t access)
{
	char text[64], major[12] = "*", minor[12] = "*";

	if (key.major != ANY)
		snprintf(major, sizeof(major), "%u", key.major);
	if (key.minor != ANY)
		snprintf(minor, sizeof(minor), "%u", key.minor);
	snprintf(text, sizeof(text), "%c %s:%s %s%s%s", key.type == BPF_DEVCG_DEV_BLOCK ? 'b' : 'c', major, minor,
		 access & BPF_DEVCG_ACC_READ ? "r" : "", access & BPF_DEVCG_ACC_WRITE ? "w" : "",
		 access & BPF_DEVCG_ACC_MKNOD ? "m" : "");
	return write_at(cgroup, file, text);
}

static int filter_v1(int cgroup, int out[], struct failure *f)
{
	if (write_at(cgroup, "devices.deny", "a"))
		return fail(f, "filter devices", "cgroup v1 `devices.deny`");
	for (size_t i = 0; i < ARRAY_SIZE(always); i++)
		if (v1_rule(cgroup, "devices.allow", always[i], 7))
			return fail(f, "filter devices", "cgroup v1 `devices.allow`");
	out[0] = fcntl(cgroup, F_DUPFD_CLOEXEC, 3);
	return out[0] < 0 ? fail(f, "filter devices", "dup") : 0;
}

int priv_program(const void *request, const int in[], int count, int out[], struct failure *f)
{
	const struct priv_program *r = request;
	union bpf_attr attr = {
		.target_fd = (uint32_t)in[0], .attach_type = BPF_CGROUP_DEVICE, .attach_flags = BPF_F_ALLOW_MULTI};
	OWNED int map = -1, program = -1;

	errno = EINVAL;
	if (!priv_is_cgroup(in[0]))
		return fail(f, "filter devices", "not a cgroup");
	if (r->v1)
		return filter_v1(in[0], out, f);
	if (count > 1 && !device_map_is(in[1], FILTER))
		return fail(f, "filter devices", "not a filter");
	map = count > 1 ? fcntl(in[1], F_DUPFD_CLOEXEC, 3) : device_map_create(FILTER);
	if (map < 0)
		return fail(f, "filter devices", "bpf: a map");
	for (size_t i = 0; count == 1 && i < ARRAY_SIZE(always); i++)
		if (device_map_set(map, always[i], 7))
			return fail(f, "filter devices", "bpf: a map's update");
	program = program_load(map);
	attr.attach_bpf_fd = (uint32_t)program;
	if (program < 0 || sys_bpf(BPF_PROG_ATTACH, &attr))
		return fail(f, "filter devices", "bpf: a device program");
	out[0] = take_fd(&map);
	return 0;
}

static int rule(const struct priv_rule *r, int filter, bool allow, struct failure *f)
{
	struct device_key key = {r->type == S_IFBLK ? BPF_DEVCG_DEV_BLOCK : BPF_DEVCG_DEV_CHAR, r->major, r->minor};
	bool ours = r->v1 ? priv_is_cgroup(filter) : device_map_is(filter, FILTER);
	int failed;

	errno = EINVAL;
	if (!ours || (r->type != S_IFBLK && r->type != S_IFCHR) || (allow && (!r->access || r->access & ~7u)))
		return fail(f, allow ? "allow the device" : "deny the device", "not a rule");
	if (r->v1)
		failed = v1_rule(filter, allow ? "devices.allow" : "devices.deny", key, allow ? r->access : 7);
	else
		failed = allow ? device_map_set(filter, key, r->access)
			       : device_map_delete(filter, key) && errno != ENOENT;
	return failed ? fail(f, allow ? "allow the device" : "deny the device", "%u:%u", r->major, r->minor) : 0;
}

int priv_allow(const void *request, const int in[], int count, int out[], struct failure *f)
{
	(void)count, (void)out;
	return rule(request, in[0], true, f);
}

bool priv_always_allowed(uint32_t type, uint32_t major, uint32_t minor)
{
	for (size_t i = 0; i < ARRAY_SIZE(always); i++)
		if (type == S_IFCHR && always[i].major == major && (always[i].minor == minor || always[i].minor == ANY))
			return true;
	return false;
}

int priv_deny(const void *request, const int in[], int count, int out[], struct failure *f)
{
	const struct priv_rule *r = request;

	(void)count, (void)out;
	return priv_always_allowed(r->type, r->major, r->minor) ? 0 : rule(r, in[0], false, f);
}
