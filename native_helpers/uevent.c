/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * What programs inside hear of devices that come and go: the kernel tells only networks of the host's own user
 * namespace. Each node has its `add` and its `remove`, under the name that it has inside; all else is as the kernel
 * says it of the device. Nobody waits for it: who cannot be told is not told. */
#include "monitor.h"

#include <stdlib.h>
#include <sys/sysmacros.h>

/* A node's name, number and rights are the instance's own; the kernel counts by itself. */
static const char *const left_out[] = {"ACTION", "DEVPATH", "SUBSYSTEM", "SEQNUM", "SYNTH_UUID", "MAJOR",
				       "MINOR",  "DEVNAME", "DEVMODE",   "DEVUID", "DEVGID"};

bool uevent_value(const char *text, char end, size_t size, const char *key, char *value, size_t room)
{
	size_t length = strlen(key);

	for (const char *line = text; line < text + size && *line;) {
		const char *stop = memchr(line, end, (size_t)(text + size - line));
		size_t used = stop ? (size_t)(stop - line) : (size_t)(text + size - line);

		if (used > length && !strncmp(line, key, length) && line[length] == '=' && used - length <= room) {
			memcpy(value, line + length + 1, used - length - 1);
			value[used - length - 1] = '\0';
			return true;
		}
		line += used + 1;
	}
	return false;
}

__attribute__((format(printf, 2, 3))) static void put(struct priv_uevent *u, const char *format, ...)
{
	size_t room = sizeof(u->text) - u->size;
	va_list arguments;
	int length;

	va_start(arguments, format);
	length = vsnprintf(u->text + u->size, room, format, arguments);
	va_end(arguments);
	/* what does not fit is left out, as a whole */
	if (length >= 0 && (size_t)length < room)
		u->size += (uint32_t)length + 1;
}

static bool is_left_out(const char *line, size_t used)
{
	for (size_t i = 0; i < ARRAY_SIZE(left_out); i++)
		if (used > strlen(left_out[i]) && line[strlen(left_out[i])] == '=' &&
		    !strncmp(line, left_out[i], strlen(left_out[i])))
			return true;
	return !memchr(line, '=', used);
}

static void put_others(struct priv_uevent *u, const char *text, char end, size_t size)
{
	for (const char *line = text; line < text + size;) {
		const char *stop = memchr(line, end, (size_t)(text + size - line));
		size_t used = stop ? (size_t)(stop - line) : (size_t)(text + size - line);

		if (!is_left_out(line, used))
			put(u, "%.*s", (int)used, line);
		line += used + 1;
	}
}

static void base_of(const struct ctl_device *d, char *base, size_t size)
{
	snprintf(base, size, "sys/dev/%s/%u:%u", d->type == CTL_BLOCK ? "block" : "char", d->major, d->minor);
}

bool uevent_place(const struct monitor *m, const struct ctl_device *d, char *place, char *class, size_t size)
{
	char base[48], path[64];
	ssize_t length;
	const char *top;

	base_of(d, base, sizeof(base));
	length = readlinkat(m->root, base, place, size - 1);
	place[length > 0 ? length : 0] = '\0';
	top = strstr(place, "/devices/");
	if (!top)
		return false;
	memmove(place, top, strlen(top) + 1);
	snprintf(path, sizeof(path), "%s/subsystem", base);
	length = readlinkat(m->root, path, class, size - 1);
	class[length > 0 ? length : 0] = '\0';
	top = strrchr(class, '/');
	if (top)
		memmove(class, top + 1, strlen(top));
	return top;
}

static void send_to(struct monitor *m, const struct priv_uevent *u)
{
	struct failure ignored;
	char path[40];
	OWNED int netns = -1;
	OWNED int own = openat(m->proc, "self/ns/net", O_RDONLY | O_CLOEXEC);

	snprintf(path, sizeof(path), "%d/ns/net", m->init);
	netns = openat(m->proc, path, O_RDONLY | O_CLOEXEC);
	if (own >= 0 && netns >= 0)
		PRIV_CALL(PRIV_UEVENT, u, NULL, &ignored, netns, own);
}

static void tell(struct monitor *m, const struct ctl_device *d, const char *action, const char *heard, size_t size)
{
	struct priv_uevent u = {.uid = m->root_uid, .gid = m->root_gid};
	char base[48], name[72], place[512], class[512], text[UEVENT_MAX];

	if (heard && (!uevent_value(heard, '\0', size, "DEVPATH", place, sizeof(place)) ||
		      !uevent_value(heard, '\0', size, "SUBSYSTEM", class, sizeof(class))))
		return;
	base_of(d, base, sizeof(base));
	if (!heard && !uevent_place(m, d, place, class, sizeof(place)))
		return;
	put(&u, "%s@%s", action, place);
	put(&u, "ACTION=%s", action);
	put(&u, "DEVPATH=%s", place);
	put(&u, "SUBSYSTEM=%s", class);
	put(&u, "MAJOR=%u", d->major);
	put(&u, "MINOR=%u", d->minor);
	put(&u, "DEVNAME=%s", d->path + strlen("/dev/"));
	if (!heard) {
		ssize_t length;

		snprintf(name, sizeof(name), "%s/uevent", base);
		length = read_at(m->root, name, text, sizeof(text));
		heard = text;
		size = length > 0 ? (size_t)length : 0;
		put_others(&u, heard, '\n', size);
	} else {
		put_others(&u, heard, '\0', size);
	}
	send_to(m, &u);
}

void uevent_node(struct monitor *m, const struct ctl_device *d, bool comes, const char *heard, size_t size)
{
	/* with the host's network its own udev would hear it; and who has not begun yet looks for himself */
	if (m->plan.net == NET_HOST || !m->started_ns)
		return;
	tell(m, d, comes ? "add" : "remove", heard, size);
	for (const struct part *p = m->part; !comes && !heard && p < m->part + m->used; p++)
		if (p->state == PART_HELD && p->device.type == d->type && p->device.major == d->major &&
		    p->device.minor == d->minor && strcmp(p->device.path, d->path)) {
			tell(m, &p->device, "add", NULL, 0); /* it is still there, under another name */
			return;
		}
}
