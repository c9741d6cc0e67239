# SPDX-License-Identifier: GPL-3.0-or-later
"""One kind of device, one file: its fields, and the rows of the plan that it becomes."""
