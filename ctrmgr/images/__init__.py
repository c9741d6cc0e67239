# SPDX-License-Identifier: GPL-3.0-or-later
"""The image store, what comes into it and what goes out.

`store` is on the hot path of `launch`; everything else here is cold and may import what it likes.
"""
