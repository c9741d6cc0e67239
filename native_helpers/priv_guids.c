/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * GUIDs of a virtual function of InfiniBand. Its driver reads them when it takes the function. */
#include "netlink.h"
#include "priv.h"

#include <linux/if_link.h>
#include <linux/magic.h>

#define STEP "set the GUIDs"

static bool is_name(const char *name, size_t size)
{
	return plain_path(name, size) && !strchr(name, '/');
}

static void put_guid(struct netlink *n, uint16_t type, uint32_t function, uint64_t value)
{
	struct ifla_vf_guid guid = {.vf = function, .guid = value};

	netlink_put(n, type, &guid, sizeof(guid));
}

static int set(const struct priv_guids *r, const char **failed)
{
	struct netlink n;
	int error = netlink_open(&n);

	*failed = "open a netlink socket";
	if (!error) {
		struct ifinfomsg *m = netlink_begin(&n, "its physical function", RTM_NEWLINK, 0, sizeof(*m));
		struct rtattr *functions, *one;

		m->ifi_index = (int)r->link;
		functions = netlink_nest(&n, IFLA_VFINFO_LIST);
		one = netlink_nest(&n, IFLA_VF_INFO);
		put_guid(&n, IFLA_VF_IB_NODE_GUID, r->function, r->node);
		put_guid(&n, IFLA_VF_IB_PORT_GUID, r->function, r->port);
		netlink_end(&n, one);
		netlink_end(&n, functions);
		error = netlink_run(&n, failed);
	}
	netlink_close(&n);
	return error;
}

int priv_guids(const void *request, const int in[], int count, int out[], struct failure *f)
{
	static const char *const files[] = {"unbind", "bind"};
	const struct priv_guids *r = request;
	const char *failed;

	(void)count, (void)out;
	if (!priv_is_on(in[0], SYSFS_MAGIC))
		return fail(f, STEP, "not sysfs");
	errno = EINVAL;
	if (!is_name(r->address, sizeof(r->address)) || !is_name(r->driver, sizeof(r->driver)))
		return fail(f, STEP, "no function or driver");
	errno = -set(r, &failed);
	if (errno)
		return fail(f, STEP, "`%.15s`: %s", r->address, failed);
	for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
		char path[PRIV_NAME + 32];

		snprintf(path, sizeof(path), "bus/pci/drivers/%s/%s", r->driver, files[i]);
		if (write_at(in[0], path, r->address))
			return fail(f, STEP, "`%s`", path);
	}
	return 0;
}
