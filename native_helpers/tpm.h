/* SPDX-License-Identifier: GPL-3.0-or-later */
#ifndef CTRMGR_TPM_H
#define CTRMGR_TPM_H

#define NODES 2

/* A TPM that the kernel has made: `fd` is where the emulator finds its commands, `node` what programs open. */
struct proxy {
	int fd;
	char node[NODES][64];
};

/* 0, or -1 with errno. */
int proxy_make(const char *path, struct proxy *proxy);

/* In the process that becomes the emulator, before it is no longer root: away from the network and from all files but
 * the programs of the host, which are read-only, and the TPM's state, which is at STATE_INSIDE. The step that failed,
 * or NULL. */
#define STATE_INSIDE "/run/tpm"
const char *enclose(const char *state);

#endif
