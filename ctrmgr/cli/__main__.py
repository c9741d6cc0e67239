# SPDX-License-Identifier: GPL-3.0-or-later
"""`python -m ctrmgr.cli`."""

import sys

from ctrmgr.cli.main import main

sys.exit(main())
