/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Asks native_helpers/btf.c of the BTF on stdin: `STRUCTURE.MEMBER` or `FUNCTION` for each argument, an answer a line.
 */
#include "btf.h"

int main(int argc, char **argv)
{
	struct btf b;

	if (btf_read(&b, 0)) {
		printf("%s\n", strerror(errno));
		btf_free(&b);
		return 1;
	}
	for (int i = 1; i < argc; i++) {
		char *dot = strchr(argv[i], '.');

		if (dot)
			*dot++ = '\0';
		printf("%ld\n", dot ? btf_member(&b, argv[i], dot) : btf_function(&b, argv[i]));
	}
	btf_free(&b);
	return 0;
}
