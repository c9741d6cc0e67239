# SPDX-License-Identifier: GPL-3.0-or-later
"""A busybox root that sleeps: the same for every peer."""

from __future__ import annotations

import shutil
from pathlib import Path


def tiny_rootfs(where: Path) -> Path:
    for folder in ("bin", "sbin", "dev", "proc", "sys", "etc", "tmp", "run", "root"):
        (where / folder).mkdir(parents=True)
    shutil.copy("/bin/busybox", where / "bin/busybox")
    for applet in ("sh", "true", "sleep", "cat", "ls"):
        (where / "bin" / applet).symlink_to("busybox")
    init = where / "sbin/init"
    init.write_text("#!/bin/sh\nexec /bin/sleep 86400\n")
    init.chmod(0o755)
    (where / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (where / "etc/group").write_text("root:x:0:\n")
    return where
