/* SPDX-License-Identifier: GPL-3.0-or-later OR GPL-2.0-only
 *
 * /dev/evict: a region of device memory that is shared out as the drivers of GPUs do it. What does not fit any more
 * takes the place of what has been there for longest and may go, of which the kernel's dmem controller decides.
 * There is no memory: only what each open file has is counted.
 *
 *     insmod evict.ko region=drm/0000:00:02.0/vram0 mib=64
 *
 * Writing a number is a buffer of so many bytes, or ENOSPC when nothing more may go. Reading says how many bytes this
 * open file has there, and how many had to go. Closing gives them back. `kernel.h` is made by module.py. */
#include "kernel.h"

#define DYNAMIC_MINOR 255
#define ENOSPC        28
#define EAGAIN        11
#define EINVAL        22
#define BUFFERS       512

#define IN(name) __attribute__((section(name), used))

struct pool; /* what a cgroup has of the region */
struct region;

struct region *dmem_cgroup_register_region(u64 size, const char *format, ...);
void dmem_cgroup_unregister_region(struct region *region);
int dmem_cgroup_try_charge(struct region *region, u64 size, struct pool **charged, struct pool **limit);
void dmem_cgroup_uncharge(struct pool *pool, u64 size);
bool dmem_cgroup_state_evict_valuable(struct pool *limit, struct pool *test, bool ignore_low, bool *hit_low);
void dmem_cgroup_pool_state_put(struct pool *pool);
int misc_register(struct miscdevice *device);
void misc_deregister(struct miscdevice *device);
void __init_rwsem(struct rw_semaphore *lock, const char *name, void *class);
void down_write(struct rw_semaphore *lock);
void up_write(struct rw_semaphore *lock);
int kstrtoull_from_user(const char *text, size_t size, unsigned int base, u64 *value);
ssize_t simple_read_from_buffer(void *to, size_t size, loff_t *at, const void *from, size_t length);
int snprintf(char *text, size_t size, const char *format, ...);
extern const struct kernel_param_ops param_ops_charp, param_ops_ulong;

static struct buffer {
	struct file *owner;
	struct pool *pool; /* NULL: it had to go */
	u64 size;
} buffers[BUFFERS]; /* who came first is first */

static char *name = "drm/0000:00:02.0/vram0";
static unsigned long mib = 64;
static struct region *region;
static u64 used;
static unsigned int count;
static struct rw_semaphore lock;
static u64 lock_class[8];

static void evict(struct buffer *b)
{
	dmem_cgroup_uncharge(b->pool, b->size);
	used -= b->size;
	b->pool = NULL;
}

/* One buffer goes; first of those that are not even asked to be spared (`dmem.low`). `limit` is the cgroup that is
 * full, NULL when the region is. */
static bool evict_one(struct pool *limit)
{
	bool spared = false;

	for (int pass = 0; pass < 1 + spared; pass++)
		for (struct buffer *b = buffers; b < buffers + count; b++)
			if (b->pool && dmem_cgroup_state_evict_valuable(limit, b->pool, pass, &spared)) {
				evict(b);
				return true;
			}
	return false;
}

static int charge(u64 size, struct pool **pool)
{
	while (true) {
		struct pool *limit = NULL;
		int error = dmem_cgroup_try_charge(region, size, pool, &limit);
		bool room;

		if (error && error != -EAGAIN)
			return error;
		if (!error) {
			if (used + size <= (u64)mib << 20)
				return 0;
			dmem_cgroup_uncharge(*pool, size);
		}
		room = evict_one(limit);
		dmem_cgroup_pool_state_put(limit);
		if (!room)
			return -ENOSPC;
	}
}

static ssize_t evict_write(struct file *file, const char *text, size_t length, loff_t *at)
{
	struct pool *pool;
	u64 size;
	int error = kstrtoull_from_user(text, length, 0, &size);

	(void)at;
	if (error)
		return error;
	if (!size)
		return -EINVAL;
	down_write(&lock);
	error = size > (u64)mib << 20 || count == BUFFERS ? -ENOSPC : charge(size, &pool);
	if (!error) {
		buffers[count++] = (struct buffer){file, pool, size};
		used += size;
	}
	up_write(&lock);
	return error ? error : (ssize_t)length;
}

static ssize_t evict_read(struct file *file, char *to, size_t size, loff_t *at)
{
	u64 there = 0, gone = 0;
	char text[64];
	ssize_t done;

	down_write(&lock);
	for (struct buffer *b = buffers; b < buffers + count; b++)
		if (b->owner == file)
			*(b->pool ? &there : &gone) += b->size;
	up_write(&lock);
	done = simple_read_from_buffer(to, size, at, text, snprintf(text, sizeof(text), "%llu %llu\n", there, gone));
	if (!done)
		*at = 0; /* who reads on after the end is told anew */
	return done;
}

static int evict_release(struct inode *inode, struct file *file)
{
	struct buffer *left = buffers;

	(void)inode;
	down_write(&lock);
	for (struct buffer *b = buffers; b < buffers + count; b++)
		if (b->owner != file)
			*left++ = *b;
		else if (b->pool)
			evict(b);
	count = left - buffers;
	up_write(&lock);
	return 0;
}

static int begin(void);
static void end(void);

struct module __this_module IN(".gnu.linkonce.this_module") = {.name = "evict", .init = begin, .exit = end};
static const struct file_operations operations = {
	.owner = &__this_module, .read = evict_read, .write = evict_write, .release = evict_release};
static struct miscdevice device = {.minor = DYNAMIC_MINOR, .name = "evict", .fops = &operations};
static const struct kernel_param parameters[] IN("__param") = {
	{.name = "region", .mod = &__this_module, .ops = &param_ops_charp, .arg = &name},
	{.name = "mib", .mod = &__this_module, .ops = &param_ops_ulong, .arg = &mib},
};
static const char information[] IN(".modinfo") = "license=GPL\0name=evict\0vermagic=" VERMAGIC;

static int begin(void)
{
	int error;

	__init_rwsem(&lock, "evict", lock_class);
	region = dmem_cgroup_register_region((u64)mib << 20, "%s", name);
	if (!region)
		return -EINVAL;
	if ((unsigned long)region >= -4095UL)
		return (int)(long)region;
	error = misc_register(&device);
	if (error)
		dmem_cgroup_unregister_region(region);
	return error;
}

static void end(void)
{
	misc_deregister(&device);
	dmem_cgroup_unregister_region(region);
}
