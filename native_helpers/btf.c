/* SPDX-License-Identifier: GPL-3.0-or-later */
#include "btf.h"

#include <linux/btf.h>
#include <stdlib.h>
#include <sys/mman.h>

#define SIZE_MAX_BYTES (64u << 20)
#define DEPTH_MAX      8

/* Bytes of what follows each kind's struct btf_type; of those with elements, of each element. */
static const struct {
	uint8_t fixed, element;
} extra[] = {
	[BTF_KIND_INT] = {4, 0},      [BTF_KIND_ARRAY] = {sizeof(struct btf_array), 0},
	[BTF_KIND_STRUCT] = {0, 12},  [BTF_KIND_UNION] = {0, 12},
	[BTF_KIND_ENUM] = {0, 8},     [BTF_KIND_FUNC_PROTO] = {0, 8},
	[BTF_KIND_VAR] = {4, 0},      [BTF_KIND_DATASEC] = {0, 12},
	[BTF_KIND_DECL_TAG] = {4, 0}, [BTF_KIND_ENUM64] = {0, 12},
	[BTF_KIND_TYPE_TAG] = {0, 0},
};

static const char *text(const struct btf *b, uint32_t offset)
{
	return offset < b->strings_size ? b->strings + offset : "";
}

/* NULL for a number that there is not. */
static const struct btf_type *type_at(const struct btf *b, uint32_t number)
{
	return number && number < b->count ? (const struct btf_type *)(b->types + b->start[number]) : NULL;
}

static const struct btf_member *members(const struct btf_type *t)
{
	return (const struct btf_member *)(t + 1);
}

/* Walks over the types: counts them, and notes where each begins once `start` is there. */
static int walk(struct btf *b)
{
	uint32_t at = 0, number = 1;

	while (at < b->types_size) {
		const struct btf_type *t = (const struct btf_type *)(b->types + at);
		uint64_t next = at + sizeof(*t);

		if (next > b->types_size || BTF_INFO_KIND(t->info) >= ARRAY_SIZE(extra))
			return -1; /* a kind of a later kernel: its size is not known, nor is what follows */
		next += extra[BTF_INFO_KIND(t->info)].fixed +
			(uint64_t)extra[BTF_INFO_KIND(t->info)].element * BTF_INFO_VLEN(t->info);
		if (next > b->types_size)
			return -1;
		if (b->start)
			b->start[number] = at;
		at = (uint32_t)next;
		number++;
	}
	b->count = number;
	return 0;
}

static int parse(struct btf *b)
{
	const struct btf_header *h = (const struct btf_header *)b->data;
	uint64_t types, strings;

	if (b->size < sizeof(*h) || h->magic != BTF_MAGIC || h->version != BTF_VERSION || h->hdr_len % 4 ||
	    h->hdr_len < sizeof(*h))
		return -1;
	types = (uint64_t)h->hdr_len + h->type_off;
	strings = (uint64_t)h->hdr_len + h->str_off;
	if (types % 4 || types + h->type_len > b->size || strings + h->str_len > b->size || !h->str_len ||
	    b->data[strings + h->str_len - 1])
		return -1;
	b->types = b->data + types;
	b->types_size = h->type_len;
	b->strings = (const char *)b->data + strings;
	b->strings_size = h->str_len;
	if (walk(b))
		return -1;
	b->start = calloc(b->count, sizeof(*b->start));
	return b->start ? walk(b) : -1;
}

int btf_read(struct btf *b, int fd)
{
	off_t size = lseek(fd, 0, SEEK_END);
	unsigned char *data;
	ssize_t length;

	*b = (struct btf){0};
	errno = EINVAL;
	if (size <= 0 || size > SIZE_MAX_BYTES)
		return -1;
	/* not malloc: all of it shall go back to the kernel */
	data = mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (data == MAP_FAILED)
		return -1;
	b->data = data;
	b->size = (size_t)size;
	for (size_t done = 0; done < b->size; done += (size_t)length) {
		length = pread(fd, data + done, b->size - done, (off_t)done);
		if (length <= 0) {
			errno = length ? errno : EINVAL;
			return -1;
		}
	}
	errno = EINVAL;
	return parse(b);
}

void btf_free(struct btf *b)
{
	if (b->data)
		munmap((void *)b->data, b->size);
	free(b->start);
	*b = (struct btf){0};
}

static long find_member(const struct btf *b, const struct btf_type *t, const char *name, int depth)
{
	for (uint32_t i = 0; i < BTF_INFO_VLEN(t->info); i++) {
		const struct btf_member *m = &members(t)[i];
		uint32_t bits = BTF_INFO_KFLAG(t->info) ? BTF_MEMBER_BIT_OFFSET(m->offset) : m->offset;
		const struct btf_type *inner = *text(b, m->name_off) ? NULL : type_at(b, m->type);
		long within = -1;

		if (!inner && !strcmp(text(b, m->name_off), name))
			return bits / 8;
		if (inner && depth < DEPTH_MAX &&
		    (BTF_INFO_KIND(inner->info) == BTF_KIND_STRUCT || BTF_INFO_KIND(inner->info) == BTF_KIND_UNION))
			within = find_member(b, inner, name, depth + 1);
		if (within >= 0)
			return bits / 8 + within;
	}
	return -1;
}

static long find(const struct btf *b, uint32_t kind, const char *name)
{
	for (uint32_t number = 1; number < b->count; number++) {
		const struct btf_type *t = type_at(b, number);

		if (BTF_INFO_KIND(t->info) == kind && !strcmp(text(b, t->name_off), name))
			return number;
	}
	return -1;
}

long btf_member(const struct btf *b, const char *structure, const char *member)
{
	long number = find(b, BTF_KIND_STRUCT, structure);

	return number < 0 ? -1 : find_member(b, type_at(b, (uint32_t)number), member, 0);
}

long btf_function(const struct btf *b, const char *name)
{
	return find(b, BTF_KIND_FUNC, name);
}
