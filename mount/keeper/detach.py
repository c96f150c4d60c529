"""Detaches a mount that no daemon will serve again, as soon as no process holds it. Then the guard is visible.

Not before: a broker that still holds it would find the bare directory in its place.
"""

import contextlib
import fcntl
import logging
import os
import select
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from commitlogfs.mount.keeper.options import Options
from commitlogfs.mount.linux import logs, mountinfo
from commitlogfs.mount.linux.holders import describe_holders, find_holders
from commitlogfs.mount.linux.stop_signals import REOPEN, STOPS, Signals
from commitlogfs.mount.location import runtime_directory
from commitlogfs.store import _syscalls
from commitlogfs.store.events import log_event
from commitlogfs.store.timing import KeeperTiming

log = logging.getLogger(__name__)


def detach_unused(options: Options, signals: Signals, timing: KeeperTiming, *, patient: bool) -> None:
    """Detach the dead mount once no process holds it; if not `patient`, only if none does now.

    Ends early when the mount is gone, when another keeper or daemon has this name, or at a stop signal. The caller
    has closed its descriptors and released the keeper's lock.
    """
    waiting = False
    while _is_visible(options):
        holders = find_holders(options.mountpoint, exclude=[os.getpid()])
        if not holders:
            _detach_if_ours(options)
            return
        if not waiting:
            described = describe_holders(holders)
            log_event(log, logging.ERROR, "dead_mount_held", path=options.mountpoint, holders=described)
            waiting = True
        if not patient or _is_signalled(signals, timing.detached_look_s):
            return
        with _sole_owner(options) as alone:
            if not alone:
                return


def _detach_if_ours(options: Options) -> None:
    """Under both locks of the name: a mount that was made meanwhile has a daemon."""
    with _sole_owner(options) as alone:
        if not alone or not _is_visible(options):
            return
        try:
            _detach(options.mountpoint)
        except OSError as error:
            log_event(log, logging.ERROR, "keeper_cannot_detach", path=options.mountpoint, reason=str(error))
        else:
            log_event(log, logging.WARNING, "keeper_detached", path=options.mountpoint)
            for path in (*_lock_paths(options), runtime_directory.journal_path(options.name)):
                path.unlink(missing_ok=True)


def _detach(mountpoint: str) -> None:
    """Raises OSError."""
    if os.geteuid() != 0:
        tool = shutil.which("fusermount3") or shutil.which("fusermount") or "fusermount3"
        done = subprocess.run([tool, "-u", "-z", "--", mountpoint], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise OSError(done.stderr.strip() or f"{tool} failed ({done.returncode})")
        return
    _syscalls.umount2(os.fsencode(mountpoint), _syscalls.MNT_DETACH | _syscalls.UMOUNT_NOFOLLOW)


def _is_visible(options: Options) -> bool:
    """Whether the topmost mount there has this name; any other one is left alone."""
    entry = mountinfo.find_mount(options.mountpoint)
    return entry is not None and mountinfo.is_commitlogfs(entry) and entry.source == options.name


@contextlib.contextmanager
def _sole_owner(options: Options) -> Iterator[bool]:
    """Whether no keeper and no daemon of this name runs; none can start meanwhile."""
    with contextlib.ExitStack() as stack:
        for path in _lock_paths(options):
            try:
                fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            except FileNotFoundError:
                continue
            stack.callback(os.close, fd)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
        yield True


def _lock_paths(options: Options) -> tuple[Path, Path]:
    return runtime_directory.keeper_lock_path(options.name), runtime_directory.lock_path(options.name)


def _is_signalled(signals: Signals, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(signals.fileno(), select.POLLIN)
    if not poll.poll(timeout_s * 1000):
        return False
    numbers = tuple(signals.take())
    if REOPEN in numbers:
        logs.reopen_soon()
    return any(number in STOPS for number in numbers)
