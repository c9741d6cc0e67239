# SPDX-License-Identifier: GPL-3.0-or-later
"""Names for instances that got none."""

from __future__ import annotations

import os

FIRST = (
    "able amber brave brisk calm clear clever cosy crisp deft eager early fair fast fine fond free fresh gentle glad "
    "golden grand green happy honest keen kind lively lucky mellow merry mild neat nimble noble plain polite proud pure "
    "quick quiet rapid ready rosy royal silent silver smart smooth snowy solid sunny swift tidy tiny warm wise witty"
).split()
SECOND = (
    "ant badger bear beaver bee bison bobcat camel cat cobra condor coyote crab crane crow deer dingo dolphin dove duck "
    "eagle eel elk falcon ferret finch fox frog gecko goose hare hawk heron horse ibex jay koala lark lemur lion llama "
    "lynx magpie marten mole moose moth newt orca otter owl panda parrot pony puffin quail rabbit raven robin salmon seal "
    "shark sloth snail sparrow stork swan tapir tiger toad trout turtle viper walrus weasel whale wolf wombat wren yak"
).split()


def pick() -> str:
    """`swift-otter`, one of some six thousand."""
    noise = int.from_bytes(os.urandom(4))
    return f"{FIRST[noise % len(FIRST)]}-{SECOND[noise // len(FIRST) % len(SECOND)]}"
