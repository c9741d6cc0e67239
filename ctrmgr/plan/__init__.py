# SPDX-License-Identifier: GPL-3.0-or-later
"""Pure data from specification and host: the rows of a run plan."""
