# SPDX-License-Identifier: GPL-3.0-or-later
"""What is on this machine: pure readers under a root, so that tests give them a recorded tree."""
