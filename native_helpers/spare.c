/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * When a device's hardware goes, another of the same model takes its place, under the same paths. Each node of a device
 * that wants that has a rule: its class, how its name begins, the model, the path. Nodes of one piece of hardware are a
 * unit: all of them come from one other piece, in one go, or none does. */
#include "hotplug.h"

#include <ctype.h>

#define UNIT_MAX 16

struct unit {
	size_t count;
	const struct part *rule[UNIT_MAX];
	struct node node[UNIT_MAX];
};

struct search {
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
	for (struct part *p = NULL; (p = part_next(m, name, p));)
		if (is_model(p))
			return true;
	return false;
}

/* The place of the nearest directory above that has a model: a USB device's, or of another bus. */
static bool model_of(const struct monitor *m, const struct node *n, char *hardware, char *vendor, char *model,
		     size_t size)
{
	snprintf(hardware, PLACE_MAX, "%s", n->place);
	for (unsigned above = 0; above <= DEPTH; above++) {
		char *slash = strrchr(hardware, '/');

		if ((node_attribute(m, n, above, "idVendor", vendor, size) &&
		     node_attribute(m, n, above, "idProduct", model, size)) ||
		    (node_attribute(m, n, above, "vendor", vendor, size) &&
		     node_attribute(m, n, above, "device", model, size)))
			return true;
		if (!slash)
			return false;
		*slash = '\0';
	}
	return false;
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

/* What is where the rule would put one. */
static const struct part *occupant(struct monitor *m, const struct part *rule)
{
	const char *path = rule_word(rule, "path");

	for (struct part *p = NULL; path && (p = part_next(m, rule->device.name, p));)
		if (part_is_node(p) && !strcmp(p->device.path + strlen("/dev/"), path))
			return p;
	return NULL;
}

static bool is_of_hardware(struct monitor *m, const struct part *p, const char *hardware)
{
	char its[PLACE_MAX], vendor[64], model[64];
	struct node n;

	return node_open(m, p->device.type == CTL_BLOCK ? "block" : "char", p->device.major, p->device.minor, &n) &&
	       model_of(m, &n, its, vendor, model, sizeof(vendor)) && !strcmp(its, hardware);
}

static bool matches(struct monitor *m, const char *kind, unsigned major, unsigned minor, void *data)
{
	struct search *s = data;
	char hardware[PLACE_MAX];

	return node_open(m, kind, major, minor, s->found) && is_alike(m, s->rule, s->found, hardware) &&
	       !strcmp(hardware, s->hardware) && rule_waits(m, s->rule, s->found);
}

static bool is_beside(const struct part *one, const struct part *other)
{
	const char *unit = rule_word(one, "unit"), *its = rule_word(other, "unit");

	return is_model(other) && !strcmp(one->device.name, other->device.name) && unit && its && !strcmp(unit, its);
}

/* Everything that is missing beside `n`, of the same hardware. */
static bool complete(struct monitor *m, const struct part *rule, const struct node *n, const char *hardware,
		     struct unit *u)
{
	for (const struct part *r = m->part; r < m->part + m->used; r++) {
		struct search s = {.rule = r, .hardware = hardware};
		const struct part *there;

		if (!is_beside(rule, r))
			continue;
		there = occupant(m, r);
		if (there && !is_of_hardware(m, there, hardware))
			return false;
		if (there)
			continue;
		if (u->count == UNIT_MAX)
			return false;
		s.found = &u->node[u->count];
		if (r == rule)
			*s.found = *n;
		else if (!node_each(m, "char", matches, &s))
			return false;
		u->rule[u->count++] = r;
	}
	return u->count;
}

void spare_consider(struct monitor *m, const struct part *rule, const struct node *n)
{
	char hardware[PLACE_MAX];
	struct failure ignored;
	struct unit u = {0};
	size_t prepared = 0;

	if (n->block || occupant(m, rule) || !is_alike(m, rule, n, hardware) || !rule_waits(m, rule, n) ||
	    !complete(m, rule, n, hardware, &u))
		return;
	while (prepared < u.count && !rule_prepare(m, u.rule[prepared], &u.node[prepared]))
		prepared++;
	if (prepared == u.count && !part_commit(m, PLUGGING, &ignored))
		return;
	part_abandon(m, PLUGGING);
	while (prepared--)
		rule_undo(m, u.rule[prepared], &u.node[prepared]);
}
