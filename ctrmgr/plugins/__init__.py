# SPDX-License-Identifier: GPL-3.0-or-later
"""Device plugins: found without running them, asked in processes of their own, checked in all that they say. Cold."""
