/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * native_helpers/guarantee.c on a folder that looks like a cgroup: `changed FILE` or `gone`. What it writes is written
 * there.
 */
#include "monitor.h"
#include "priv.h"

#include <fcntl.h>
#include <stdlib.h>

int priv_call(enum priv_number number, const void *request, size_t size, const int in[], int count, int out[],
	      struct failure *f)
{
	const struct priv_cgroup_write *r = request;

	(void)in, (void)out, (void)f;
	if (number != PRIV_CGROUP_WRITE || size != sizeof(*r) || count != 1)
		abort();
	printf("%s = %s\n", r->file, r->value);
	return 0;
}

int main(int argc, char **argv)
{
	int folder = argc < 3 ? -1 : open(argv[1], O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (folder < 0)
		return 1;
	if (!strcmp(argv[2], "changed"))
		guarantee_changed(folder, argv[3]);
	else
		guarantee_gone(folder);
	close(folder);
	return 0;
}
