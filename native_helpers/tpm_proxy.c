/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * A TPM of the kernel's that asks a program: Documentation/security/tpm/tpm_vtpm_proxy.rst. */
#include "tpm.h"

#include <fcntl.h>
#include <linux/types.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

struct vtpm_proxy_new_dev {
	__u32 flags, tpm_num, fd, major, minor;
};
#define VTPM_PROXY_FLAG_TPM2   1
#define VTPM_PROXY_IOC_NEW_DEV _IOWR(0xa1, 0x00, struct vtpm_proxy_new_dev)

int proxy_make(const char *path, struct proxy *proxy)
{
	struct vtpm_proxy_new_dev made = {.flags = VTPM_PROXY_FLAG_TPM2};
	int fd = open(path, O_RDWR | O_CLOEXEC);

	if (fd < 0)
		return -1;
	if (ioctl(fd, VTPM_PROXY_IOC_NEW_DEV, &made)) {
		close(fd);
		return -1;
	}
	close(fd);
	proxy->fd = (int)made.fd;
	snprintf(proxy->node[0], sizeof(proxy->node[0]), "/dev/tpm%u", made.tpm_num);
	snprintf(proxy->node[1], sizeof(proxy->node[1]), "/dev/tpmrm%u", made.tpm_num);
	return 0;
}
