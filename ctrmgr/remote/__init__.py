# SPDX-License-Identifier: GPL-3.0-or-later
"""LXD and Incus servers, over a unix socket or https. Nothing here is imported until a word names a remote."""
