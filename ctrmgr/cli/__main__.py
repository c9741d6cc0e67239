# SPDX-License-Identifier: GPL-3.0-or-later
"""`python -m ctrmgr.cli`."""

from ctrmgr.cli.main import program

program()
