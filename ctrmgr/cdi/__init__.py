# SPDX-License-Identifier: GPL-3.0-or-later
"""The Container Device Interface: specs of any vendor read, and our own written."""
