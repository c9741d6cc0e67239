/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * When a device's hardware goes, another of the same model takes its place. Each node of a device that wants that has a
 * rule: its class, how its name begins, the model, the path. Nodes of one piece of hardware are a unit, together with
 * the RDMA device that they are of: all of them come from one other piece, in one go, or none does. They come under the
 * same paths, or (`names`) under the names that they have on the host, where programs find them by what the kernel
 * says of them: then the rule's path is what there is now. */
#include "hotplug.h"
#include "links.h"

#include <ctype.h>
#include <stdlib.h>

#define TRIES 4 /* in a row: a device that moves and moves back has events of its own */

struct search {
	const struct unit *unit;
	const struct part *rule;
	const char *hardware;
	struct node *found;
};

static bool is_model(const struct part *p)
{
	return part_is_rule(p) && !strcmp(p->text, "model");
}

bool spare_is_for(struct monitor *m, const char *name)
{
	for (const struct part *p = m->part; p < m->part + m->used; p++)
		if (is_model(p) && (!name || !strcmp(p->device.name, name)))
			return true;
	return false;
}

/* Writes another value of a word that the rule has. It keeps the old one where there is no memory for it. */
static void set_word(struct part *rule, const char *key, const char *value)
{
	const char *old = rule_word(rule, key);
	size_t before = old ? (size_t)(old - rule->text) : 0, after;
	char *text;

	if (!old || !strcmp(old, value))
		return;
	after = rule->size - before - strlen(old);
	text = malloc(before + strlen(value) + after);
	if (!text)
		return;
	memcpy(text, rule->text, before);
	memcpy(text + before, value, strlen(value));
	memcpy(text + before + strlen(value), old + strlen(old), after);
	free(rule->text);
	rule->text = text;
	rule->size = before + strlen(value) + after;
}

static bool begins(const char *place, const char *stem)
{
	const char *name = strrchr(place, '/');
	size_t length;

	if (!name)
		return false;
	name++;
	length = strlen(name);
	while (length && isdigit((unsigned char)name[length - 1]))
		length--;
	return !*stem || (length == strlen(stem) && !strncmp(name, stem, length));
}

static bool is_alike(const struct monitor *m, const struct part *rule, const struct node *n, char *hardware)
{
	const char *class = rule_word(rule, "class"), *stem = rule_word(rule, "name");
	const char *vendor = rule_word(rule, "vendor"), *model = rule_word(rule, "model");
	char its_vendor[64], its_model[64];

	return class && stem && vendor && model && begins(n->place, stem) &&
	       (rule_moves(rule) ? node_is_link(n) : node_in_subsystem(m, n, class)) &&
	       model_of(m, n, hardware, its_vendor, its_model, sizeof(its_vendor)) && !strcmp(its_vendor, vendor) &&
	       !strcmp(its_model, model);
}

static bool is_at(const struct part *p, const struct part *rule)
{
	const char *path = rule_word(rule, "path");

	if (!path || !*path || strcmp(p->device.name, rule->device.name))
		return false;
	return rule_moves(rule) ? p->device.type == rule_moves(rule) && !strcmp(p->device.path, path)
				: part_is_node(p) && !strcmp(p->device.path + strlen("/dev/"), path);
}

/* What is where the rule would put one. */
struct part *spare_occupant(struct monitor *m, const struct part *rule)
{
	for (struct part *p = m->part; p < m->part + m->used; p++)
		if (p->state >= PART_HELD && is_at(p, rule))
			return p;
	return NULL;
}

void spare_forget(struct monitor *m, const struct ctl_device *gone)
{
	const struct part old = {.device = *gone};

	for (struct part *p = m->part; p < m->part + m->used; p++)
		if (is_model(p) && rule_word(p, "names") && is_at(&old, p))
			set_word(p, "path", "");
}

bool spare_moved_in(struct monitor *m, const struct part *node)
{
	char device[64];
	struct node n;

	for (const struct part *p = m->part; p < m->part + m->used; p++)
		if (p->state == PART_HELD && p->device.type == CTL_RDMA && p->fd >= 0 &&
		    !strcmp(p->device.name, node->device.name) &&
		    node_open(m, "char", node->device.major, node->device.minor, &n) &&
		    node_attribute(m, &n, 0, "ibdev", device, sizeof(device)) && !strcmp(device, p->device.path) &&
		    rdma_is_there(m, p))
			return true;
	return false;
}

static bool is_of_hardware(struct monitor *m, const struct part *p, const char *hardware)
{
	char its[PLACE_MAX], vendor[64], model[64];
	struct node n;

	return node_open(m, p->device.type == CTL_BLOCK ? "block" : "char", p->device.major, p->device.minor, &n) &&
	       model_of(m, &n, its, vendor, model, sizeof(vendor)) && !strcmp(its, hardware);
}

static bool is_chosen(const struct unit *u, const struct node *n)
{
	for (size_t i = 0; i < u->count; i++)
		if (u->piece[i].node.major == n->major && u->piece[i].node.minor == n->minor)
			return true;
	return false;
}

static bool matches(struct monitor *m, const char *kind, unsigned major, unsigned minor, void *data)
{
	struct search *s = data;
	char hardware[PLACE_MAX];

	return node_open(m, kind, major, minor, s->found) && is_alike(m, s->rule, s->found, hardware) &&
	       !strcmp(hardware, s->hardware) && rule_waits(m, s->rule, s->found) && !is_chosen(s->unit, s->found);
}

static bool is_beside(const struct part *one, const struct part *other)
{
	const char *unit = rule_word(one, "unit"), *its = rule_word(other, "unit");

	return is_model(other) && !strcmp(one->device.name, other->device.name) && unit && its && !strcmp(unit, its);
}

static bool add_node(struct monitor *m, const struct search *s, struct unit *u, struct part *rule, const struct node *n)
{
	struct piece *piece = &u->piece[u->count];
	const struct part *there = spare_occupant(m, rule);
	struct search search = *s;

	if (there)
		return is_of_hardware(m, there, s->hardware);
	if (u->count == UNIT_MAX)
		return false;
	search.rule = piece->rule = rule;
	search.found = &piece->node;
	if (n)
		piece->node = *n;
	else if (!node_each(m, "char", matches, &search))
		return false;
	u->count++;
	return true;
}

/* Everything that is missing beside `n`, of the same hardware. */
static bool complete(struct monitor *m, const struct part *rule, const struct node *n, const char *hardware,
		     struct unit *u)
{
	const struct search s = {.unit = u, .hardware = hardware};

	if (!add_node(m, &s, u, m->part + (rule - m->part), n))
		return false;
	for (struct part *r = m->part; r < m->part + m->used; r++)
		if (r != rule && is_beside(rule, r) && !rule_moves(r) && !add_node(m, &s, u, r, NULL))
			return false;
	for (struct part *r = m->part; r < m->part + m->used; r++)
		if (r != rule && is_beside(rule, r) && rule_moves(r) && !spare_add_move(m, u, r, hardware))
			return false;
	return true;
}

/* What a rule's device holds besides its nodes: the hardware, `pci:0000:65:00.0`, or the link that moves. */
struct hold {
	struct part *rule;
	char id[96]; /* from now on; "": software holds nothing */
};

static void name_hold(const struct unit *u, const char *hardware, struct hold *h)
{
	const char *holds = rule_word(h->rule, "holds"), *name = strrchr(hardware, '/');
	int kind = (int)strcspn(holds, ":");

	if (rule_moves(h->rule) == CTL_NETDEV)
		snprintf(h->id, sizeof(h->id), "%s", holds);
	else if (name && !strncmp(hardware, "../", 3))
		snprintf(h->id, sizeof(h->id), "%.*s:%s", kind, holds, name + 1);
	for (size_t i = 0; i < u->count; i++)
		if (u->piece[i].rule == h->rule && rule_moves(h->rule))
			snprintf(h->id, sizeof(h->id), "%.*s:%.15s", kind, holds, u->piece[i].node.name);
}

static bool is_new(const struct hold *h)
{
	return *h->id && strcmp(h->id, rule_word(h->rule, "holds"));
}

static size_t holds_of(struct monitor *m, const struct unit *u, const char *hardware, struct hold hold[UNIT_MAX])
{
	size_t count = 0;

	for (struct part *r = m->part; r < m->part + m->used && count < UNIT_MAX; r++)
		if (is_beside(u->piece[0].rule, r) && rule_word(r, "holds")) {
			hold[count] = (struct hold){.rule = r};
			name_hold(u, hardware, &hold[count++]);
		}
	return count;
}

static const char *mode_of(const struct part *rule)
{
	return rule_moves(rule) ? "exclusive" : rule_word(rule, "lease");
}

static void settle(struct monitor *m, const struct unit *u, const struct hold *hold, size_t holds)
{
	for (size_t i = 0; i < holds; i++) {
		const char *old = rule_word(hold[i].rule, "holds");

		if (strcmp(old, hold[i].id))
			lease_return_id(m, old, hold[i].rule->device.name);
		if (*hold[i].id)
			set_word(hold[i].rule, "holds", hold[i].id);
	}
	for (size_t i = 0; i < u->count; i++)
		if (rule_word(u->piece[i].rule, "names"))
			set_word(u->piece[i].rule, "path", u->piece[i].node.name);
}

static bool has_moves(const struct unit *u)
{
	for (size_t i = 0; i < u->count; i++)
		if (rule_moves(u->piece[i].rule))
			return true;
	return false;
}

/* All of it is had, or nothing. `back`: something has moved, perhaps, and was moved back. */
static bool take(struct monitor *m, const struct unit *u, const char *hardware, bool *back)
{
	struct hold hold[UNIT_MAX];
	size_t holds = holds_of(m, u, hardware, hold), held = 0, prepared = 0;
	struct failure ignored;

	while (held < holds && (!is_new(&hold[held]) || !lease_take_id(m, hold[held].id, hold[held].rule->device.name,
								       mode_of(hold[held].rule))))
		held++;
	if (held < holds)
		m->look_at = now_ms() + PATIENCE; /* nobody tells us when it is given back */
	while (held == holds && prepared < u->count &&
	       !(rule_moves(u->piece[prepared].rule)
			 ? spare_prepare_move(m, &u->piece[prepared])
			 : rule_prepare(m, u->piece[prepared].rule, &u->piece[prepared].node)))
		prepared++;
	if (held == holds && prepared == u->count) {
		if (!part_commit(m, PLUGGING, &ignored)) {
			parts_tell(m);
			settle(m, u, hold, holds);
			return true;
		}
		*back = has_moves(u);
	}
	part_abandon(m, PLUGGING);
	while (prepared--)
		if (!rule_moves(u->piece[prepared].rule))
			rule_undo(m, u->piece[prepared].rule, &u->piece[prepared].node);
	while (held--)
		if (is_new(&hold[held]))
			lease_return_id(m, hold[held].id, hold[held].rule->device.name);
	return false;
}

/* Another device of the instance has it under the only name that it can have. */
static bool is_elsewhere(const struct monitor *m, const struct part *rule, const struct node *n)
{
	for (const struct part *p = m->part; rule_word(rule, "names") && p < m->part + m->used; p++)
		if (p->state >= PART_HELD && node_is(p, n))
			return true;
	return false;
}

void spare_consider(struct monitor *m, struct part *rule, const struct node *n)
{
	static unsigned tried;
	static int64_t last;
	char hardware[PLACE_MAX];
	struct unit u = {0};
	bool back = false;

	if (tried >= TRIES && now_ms() < last + PATIENCE)
		return;
	if (n->block || spare_occupant(m, rule) || !is_alike(m, rule, n, hardware) || is_elsewhere(m, rule, n) ||
	    !rule_waits(m, rule, n) || !complete(m, rule, n, hardware, &u))
		return;
	if (take(m, &u, hardware, &back)) {
		tried = 0;
	} else if (back) {
		last = now_ms();
		tried++;
	}
}

/* Nodes lead what moves with them; a link that has none is looked for by itself. */
void spare_links(struct monitor *m)
{
	for (struct part *rule = m->part; rule < m->part + m->used; rule++) {
		bool led = !is_model(rule) || rule_moves(rule) != CTL_NETDEV;

		for (struct part *r = m->part; !led && r < m->part + m->used; r++)
			led = is_beside(rule, r) && !rule_moves(r);
		if (!led)
			spare_try_links(m, rule);
	}
}
