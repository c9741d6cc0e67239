/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * One call of the privileged table, as somebody would make it who serves the table to others: the operation's number
 * and its descriptors as arguments (-1: none), the request on stdin. Says the errno, how many descriptors came out,
 * and the step that failed. */
#include "priv.h"

#include <stdlib.h>

int main(int argc, char **argv)
{
	static char request[1 << 16];
	int in[64] = {0}, out[4] = {-1, -1, -1, -1}, given = 0;
	struct failure f = {0};
	ssize_t size = read(0, request, sizeof(request));
	void *exact = size < 0 ? NULL : malloc((size_t)size + !size); /* so that reading beyond it is noticed */
	int failed;

	if (!exact || argc < 2 || argc > 60)
		return 99;
	memcpy(exact, request, (size_t)size);
	priv_proc = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
	for (int i = 2; i < argc; i++)
		in[i - 2] = atoi(argv[i]);
	failed = priv_call((enum priv_number)atoi(argv[1]), exact, (size_t)size, in, argc - 2, out, &f);
	for (size_t i = 0; i < ARRAY_SIZE(out); i++)
		given += out[i] >= 0;
	printf("%d\t%d\t%s: %s\n", failed ? f.error : 0, given, f.step, f.detail);
	free(exact);
	return 0;
}
