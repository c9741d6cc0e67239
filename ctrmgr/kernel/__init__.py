# SPDX-License-Identifier: GPL-3.0-or-later
"""The only way to the kernel: native helpers (`spawn`), the monitors' protocol (`control`), a few syscalls (cold)."""
