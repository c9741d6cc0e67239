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

#define UNIT_MAX 16
#define PATIENCE 2000 /* ms */
#define TRIES    4    /* in a row: a device that moves and moves back has events of its own */

struct piece {
	struct part *rule;
	struct node node; /* of an RDMA device only its name */
};

struct unit {
	size_t count;
	struct piece piece[UNIT_MAX];
};

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

static bool is_rdma(const struct part *rule)
{
	const char *class = rule_word(rule, "class");

	return class && !strcmp(class, "rdma");
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

	return class && stem && vendor && model && begins(n->place, stem) && node_in_subsystem(m, n, class) &&
	       model_of(m, n, hardware, its_vendor, its_model, sizeof(its_vendor)) && !strcmp(its_vendor, vendor) &&
	       !strcmp(its_model, model);
}

static bool is_at(const struct part *p, const struct part *rule)
{
	const char *path = rule_word(rule, "path");

	if (!path || !*path || strcmp(p->device.name, rule->device.name))
		return false;
	return is_rdma(rule) ? p->device.type == CTL_RDMA && !strcmp(p->device.path, path)
			     : part_is_node(p) && !strcmp(p->device.path + strlen("/dev/"), path);
}

/* What is where the rule would put one. */
static struct part *occupant(struct monitor *m, const struct part *rule)
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
	const struct part *there = occupant(m, rule);
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

/* The RDMA device that the nodes are of: known by name, which another may have had. */
static bool add_rdma(struct monitor *m, struct unit *u, struct part *rule)
{
	struct part *there = occupant(m, rule);
	struct piece *piece = &u->piece[u->count];
	char device[64] = "";

	for (size_t i = 0; i < u->count && !*device; i++)
		node_attribute(m, &u->piece[i].node, 0, "ibdev", device, sizeof(device));
	if (there && rdma_is_there(m, there))
		return !strcmp(there->device.path, device);
	if (there)
		part_free(there);
	if (u->count == UNIT_MAX || !*device)
		return false;
	piece->rule = rule;
	snprintf(piece->node.name, sizeof(piece->node.name), "%s", device);
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
		if (r != rule && is_beside(rule, r) && !is_rdma(r) && !add_node(m, &s, u, r, NULL))
			return false;
	for (struct part *r = m->part; r < m->part + m->used; r++)
		if (is_beside(rule, r) && is_rdma(r) && !add_rdma(m, u, r))
			return false;
	return true;
}

static int prepare(struct monitor *m, const struct piece *piece)
{
	struct ctl_device d = piece->rule->device;
	struct failure ignored;

	if (!is_rdma(piece->rule))
		return rule_prepare(m, piece->rule, &piece->node);
	d.type = CTL_RDMA;
	snprintf(d.path, sizeof(d.path), "%s", piece->node.name);
	return part_prepare(m, &d, PLUGGING, -1, "", 0, &ignored);
}

/* The hardware itself, which the device holds besides its nodes: `pci:0000:65:00.0`. Software has none. */
static bool held_by(const struct part *rule, const char *hardware, char *id, size_t size)
{
	const char *holds = rule_word(rule, "holds"), *colon = holds ? strchr(holds, ':') : NULL;
	const char *name = strrchr(hardware, '/');

	if (!colon || !name || strncmp(hardware, "../", 3))
		return false;
	snprintf(id, size, "%.*s:%s", (int)(colon - holds), holds, name + 1);
	return true;
}

static struct part *holder(struct monitor *m, const struct part *rule)
{
	for (struct part *r = m->part; r < m->part + m->used; r++)
		if (is_beside(rule, r) && rule_word(r, "holds"))
			return r;
	return NULL;
}

/* All of it is had, or nothing. */
static bool take(struct monitor *m, struct unit *u, const char *hardware)
{
	struct part *holding = holder(m, u->piece[0].rule);
	char id[96];
	const char *old = holding ? rule_word(holding, "holds") : NULL;
	bool holds = holding && held_by(holding, hardware, id, sizeof(id)), moves = old && (!holds || strcmp(id, old));
	struct failure ignored;
	size_t prepared = 0;

	if (holds && moves && lease_take_id(m, id, holding->device.name, rule_word(holding, "lease"))) {
		m->look_at = now_ms() + PATIENCE;
		return false;
	}
	while (prepared < u->count && !prepare(m, &u->piece[prepared]))
		prepared++;
	if (prepared == u->count && !part_commit(m, PLUGGING, &ignored)) {
		if (moves)
			lease_return_id(m, old, holding->device.name);
		if (holds)
			set_word(holding, "holds", id);
		for (size_t i = 0; i < u->count; i++)
			if (rule_word(u->piece[i].rule, "names"))
				set_word(u->piece[i].rule, "path", u->piece[i].node.name);
		return true;
	}
	part_abandon(m, PLUGGING);
	while (prepared--)
		if (!is_rdma(u->piece[prepared].rule))
			rule_undo(m, u->piece[prepared].rule, &u->piece[prepared].node);
	if (holds && moves)
		lease_return_id(m, id, holding->device.name);
	return false;
}

void spare_consider(struct monitor *m, struct part *rule, const struct node *n)
{
	static unsigned tried;
	static int64_t last;
	char hardware[PLACE_MAX];
	struct unit u = {0};

	if (tried >= TRIES && now_ms() < last + PATIENCE)
		return;
	if (n->block || occupant(m, rule) || !is_alike(m, rule, n, hardware) || !rule_waits(m, rule, n) ||
	    !complete(m, rule, n, hardware, &u))
		return;
	last = now_ms();
	tried = take(m, &u, hardware) ? 0 : tried + 1;
}
