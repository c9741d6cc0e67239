# SPDX-License-Identifier: GPL-3.0-or-later
"""ctrmgr measured beside other systems: see README.md in this folder."""
