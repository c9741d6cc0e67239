/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * The kernel's description of its own types (BTF, Documentation/bpf/btf.rst): where a member of a structure
 * lies, and by which number a function is known. Just that much. */
#pragma once
#include "common.h"

struct btf {
	const unsigned char *data;
	size_t size;
	const unsigned char *types; /* of the section */
	const char *strings;
	uint32_t types_size, strings_size;
	uint32_t *start; /* of each type in the section; [0] is void and has none */
	uint32_t count;
};

/* Reads all of `fd`. 0, or -1 with errno: EINVAL for what is no BTF of this machine's byte order. */
int btf_read(struct btf *b, int fd);
void btf_free(struct btf *b); /* also after a failed read */

/* Byte offset of a member, also of an anonymous structure or union within. -1: there is none. */
long btf_member(const struct btf *b, const char *structure, const char *member);

/* Type number of a function. -1: there is none. */
long btf_function(const struct btf *b, const char *name);
