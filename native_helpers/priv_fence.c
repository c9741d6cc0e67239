/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * The fence around devices that were taken away: programs on the instance's cgroup2 that refuse the use of descriptors
 * which were open before. Each looks at the device behind the descriptor at hand, in one hash map. The kernel must have
 * BPF among its active security modules, and describe its types; where things lie in its structures is read from there.
 */
#include "bpf.h"
#include "btf.h"
#include "priv.h"

#include <sys/stat.h>

#define FENCE "ctrmgr_fence" /* the map's name */

/* Where a hook's first argument leads to the inode. */
struct layout {
	long file;  /* from io_uring's command to the file */
	long inode; /* from the file to the inode */
	long mode, rdev;
};

/* `late`: newer kernels only. io_uring's own commands and 32-bit programs come by hooks of their own. */
static const struct hook {
	const char *name;
	bool command, late;
} hooks[] = {
	{"bpf_lsm_file_permission", false, false},  {"bpf_lsm_file_ioctl", false, false},
	{"bpf_lsm_mmap_file", false, false},        {"bpf_lsm_file_receive", false, false},
	{"bpf_lsm_file_ioctl_compat", false, true}, {"bpf_lsm_uring_cmd", true, true},
};

/* r6 = the file; r7 = its inode; r8 = mode, then number; r9 = type. 1 lets it pass. */
static int program_load(const struct hook *hook, long number, const struct layout *at, int map)
{
	struct bpf_insn p[64];
	union bpf_attr attr = {.prog_type = BPF_PROG_TYPE_LSM,
			       .expected_attach_type = BPF_LSM_CGROUP,
			       .attach_btf_id = (uint32_t)number,
			       .insns = (uint64_t)(uintptr_t)p,
			       .license = (uint64_t)(uintptr_t) "GPL"};
	int n = 0, pass[4], passes = 0, allow;

	p[n++] = INSN(BPF_LDX | BPF_MEM | BPF_DW, 6, 1, 0, 0);
	if (hook->command)
		p[n++] = INSN(BPF_LDX | BPF_MEM | BPF_DW, 6, 6, at->file, 0);
	pass[passes++] = n;
	p[n++] = INSN(BPF_JMP | BPF_JEQ | BPF_K, 6, 0, 0, 0); /* anonymous memory has no file */
	p[n++] = INSN(BPF_LDX | BPF_MEM | BPF_DW, 7, 6, at->inode, 0);
	pass[passes++] = n;
	p[n++] = INSN(BPF_JMP | BPF_JEQ | BPF_K, 7, 0, 0, 0);
	p[n++] = INSN(BPF_LDX | BPF_MEM | BPF_H, 8, 7, at->mode, 0);
	p[n++] = INSN(BPF_ALU64 | BPF_AND | BPF_K, 8, 0, 0, S_IFMT);
	p[n++] = INSN(BPF_ALU64 | BPF_MOV | BPF_K, 9, 0, 0, BPF_DEVCG_DEV_CHAR);
	p[n++] = INSN(BPF_JMP | BPF_JEQ | BPF_K, 8, 0, 2, S_IFCHR);
	p[n++] = INSN(BPF_ALU64 | BPF_MOV | BPF_K, 9, 0, 0, BPF_DEVCG_DEV_BLOCK);
	pass[passes++] = n;
	p[n++] = INSN(BPF_JMP | BPF_JNE | BPF_K, 8, 0, 0, S_IFBLK);
	p[n++] = INSN(BPF_STX | BPF_MEM | BPF_W, 10, 9, -16, 0);
	p[n++] = INSN(BPF_LDX | BPF_MEM | BPF_W, 8, 7, at->rdev, 0); /* the kernel's own dev_t: 12 and 20 bits */
	p[n++] = INSN(BPF_ALU64 | BPF_MOV | BPF_X, 2, 8, 0, 0);
	p[n++] = INSN(BPF_ALU64 | BPF_RSH | BPF_K, 2, 0, 0, 20);
	p[n++] = INSN(BPF_STX | BPF_MEM | BPF_W, 10, 2, -12, 0);
	p[n++] = INSN(BPF_ALU64 | BPF_AND | BPF_K, 8, 0, 0, 0xfffff);
	p[n++] = INSN(BPF_STX | BPF_MEM | BPF_W, 10, 8, -8, 0);
	p[n++] = INSN(BPF_LD | BPF_DW | BPF_IMM, 1, BPF_PSEUDO_MAP_FD, 0, map);
	p[n++] = INSN(0, 0, 0, 0, 0);
	p[n++] = INSN(BPF_ALU64 | BPF_MOV | BPF_X, 2, 10, 0, 0);
	p[n++] = INSN(BPF_ALU64 | BPF_ADD | BPF_K, 2, 0, 0, -16);
	p[n++] = INSN(BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_map_lookup_elem);
	pass[passes++] = n;
	p[n++] = INSN(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 0, 0);
	p[n++] = INSN(BPF_ALU64 | BPF_MOV | BPF_K, 0, 0, 0, 0);
	p[n++] = INSN(BPF_JMP | BPF_EXIT, 0, 0, 0, 0);
	allow = n;
	p[n++] = INSN(BPF_ALU64 | BPF_MOV | BPF_K, 0, 0, 0, 1);
	p[n++] = INSN(BPF_JMP | BPF_EXIT, 0, 0, 0, 0);
	while (passes--)
		p[pass[passes]].off = (int16_t)(allow - pass[passes] - 1);
	attr.insn_cnt = (uint32_t)n;
	strcpy(attr.prog_name, "ctrmgr_fence");
	return sys_bpf(BPF_PROG_LOAD, &attr);
}

static int attach(int cgroup, int program, bool on)
{
	union bpf_attr attr = {.target_fd = (uint32_t)cgroup,
			       .attach_bpf_fd = (uint32_t)program,
			       .attach_type = BPF_LSM_CGROUP,
			       .attach_flags = on ? BPF_F_ALLOW_MULTI : 0};

	return sys_bpf(on ? BPF_PROG_ATTACH : BPF_PROG_DETACH, &attr);
}

static int find_layout(const struct btf *b, struct layout *at, struct failure *f)
{
	at->file = btf_member(b, "io_uring_cmd", "file");
	at->inode = btf_member(b, "file", "f_inode");
	at->mode = btf_member(b, "inode", "i_mode");
	at->rdev = btf_member(b, "inode", "i_rdev");
	errno = ENOENT;
	return at->inode < 0 || at->mode < 0 || at->rdev < 0 || at->inode > INT16_MAX || at->mode > INT16_MAX ||
			       at->rdev > INT16_MAX || at->file > INT16_MAX
		       ? fail(f, "fence open descriptors", "the kernel's types say nothing of `struct file`")
		       : 0;
}

/* All of the programs, or none: the ones that are attached leave with their descriptors' cgroup only. */
static int put_up(int cgroup, const struct btf *b, int map, struct failure *f)
{
	int program[ARRAY_SIZE(hooks)], failed = 0;
	struct layout at;
	size_t n = 0;

	if (find_layout(b, &at, f))
		return -1;
	for (size_t i = 0; !failed && i < ARRAY_SIZE(hooks); i++) {
		long number = btf_function(b, hooks[i].name);

		if (hooks[i].late && (number < 0 || (hooks[i].command && at.file < 0)))
			continue;
		errno = ENOENT;
		program[n] = number < 0 ? -1 : program_load(&hooks[i], number, &at, map);
		if (program[n] >= 0 && attach(cgroup, program[n], true))
			close_fd(&program[n]);
		if (program[n] < 0)
			failed = fail(f, "fence open descriptors", "the kernel refuses a program for `%s`",
				      hooks[i].name);
		else
			n++;
	}
	while (n--) {
		if (failed)
			attach(cgroup, program[n], false);
		close_fd(&program[n]);
	}
	return failed;
}

int priv_fence(const void *request, const int in[], int count, int out[], struct failure *f)
{
	OWNED int map = -1;
	struct btf types;
	int failed;

	(void)request, (void)count;
	errno = EINVAL;
	if (!priv_is_cgroup(in[0]))
		return fail(f, "fence open descriptors", "not a cgroup");
	if (btf_read(&types, in[1])) {
		btf_free(&types);
		return fail(f, "fence open descriptors", "the kernel's types cannot be read");
	}
	map = device_map_create(FENCE);
	failed = map < 0 ? fail(f, "fence open descriptors", "bpf: a map") : put_up(in[0], &types, map, f);
	btf_free(&types);
	if (!failed)
		out[0] = take_fd(&map);
	return failed;
}

int priv_fence_set(const void *request, const int in[], int count, int out[], struct failure *f)
{
	const struct priv_fence_set *r = request;
	struct device_key key = {r->type == S_IFBLK ? BPF_DEVCG_DEV_BLOCK : BPF_DEVCG_DEV_CHAR, r->major, r->minor};
	int failed;

	(void)count, (void)out;
	errno = EINVAL;
	if (!device_map_is(in[0], FENCE) || (r->type != S_IFBLK && r->type != S_IFCHR))
		return fail(f, "fence open descriptors", "not a rule of a fence");
	if (r->closed && priv_always_allowed(r->type, r->major, r->minor))
		return 0;
	failed = r->closed ? device_map_set(in[0], key, 1) : device_map_delete(in[0], key) && errno != ENOENT;
	return failed ? fail(f, "fence open descriptors", "%u:%u", r->major, r->minor) : 0;
}
