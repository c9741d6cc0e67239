# SPDX-License-Identifier: GPL-3.0-or-later
"""What carries a plan out: `local` on this machine."""
