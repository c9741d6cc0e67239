# SPDX-License-Identifier: GPL-3.0-or-later
"""What the user asked for: profiles, keys and devices, validated once when they are written or changed."""
