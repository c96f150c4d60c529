"""A disk that hangs: writes to a frozen filesystem wait in the kernel until it is thawed."""

from collections.abc import Callable
from contextlib import AbstractContextManager

from support.loop_disks import LoopDisk
from support.waiting import PATIENCE_S

from commitlogfs.bench import disks

FROZEN_AT_MOST_S = 2 * PATIENCE_S
"""Longer than a test waits beside it, and shorter than pytest waits for the test."""


def frozen(disk: LoopDisk, at_most_s: float = FROZEN_AT_MOST_S) -> AbstractContextManager[Callable[[], None]]:
    """Freeze a disk, which `at_most_s` later is thawed in any case; the value thaws it early."""
    return disks.frozen(disk.path, at_most_s)
