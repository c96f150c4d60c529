"""The process of a keeper: it keeps a mount's descriptors while daemons come and go.

`commitlogfs mount` becomes this process (exec). It speaks systemd's protocol to the daemon that it starts
(sd_notify with FDSTORE, sd_listen_fds), so a daemon does not know the difference; under systemd, `mount
--no-keeper` needs none. Whatever happens to the daemon, the descriptors of the mount stay open here, and the next
daemon takes the mount over.

It must outlive everything else, so it does little: no FUSE, no event framework, only the standard library and a few
light modules of ours (18 MiB resident, 11 of them its own). All of them are loaded at its start: when one is
needed, another version may be installed. It has no file, no working directory and no descriptor in the mount, and
never accesses the mountpoint: it would wait for the daemon that it has to start itself.

EXIT STATUS: that of a daemon that was never ready; 0 unmounted; 1 gave up; 4 another keeper has this name.
"""

import os
import signal
import sys

from commitlogfs.console.errors import RefusedError, UserError
from commitlogfs.mount.config.timing import timing_from
from commitlogfs.mount.keeper import options as keeper_options
from commitlogfs.mount.keeper.descriptors import KeptDescriptors
from commitlogfs.mount.keeper.detach import detach_unused
from commitlogfs.mount.keeper.inbox import Inbox
from commitlogfs.mount.keeper.loop import Keeper
from commitlogfs.mount.keeper.options import Options
from commitlogfs.mount.keeper.policy import Outcome
from commitlogfs.mount.linux import logs, priority
from commitlogfs.mount.linux.descriptor_store import FIRST_FD, take_received
from commitlogfs.mount.linux.stop_signals import Signals
from commitlogfs.mount.location import runtime_directory
from commitlogfs.mount.location.name_lock import hold_file, release_file
from commitlogfs.store.timing import KeeperTiming

_HIGHEST_FD = 1 << 16


def main(arguments: list[str]) -> int:
    """Keep a mount until it ends; the exit status."""
    options = keeper_options.parse(arguments)
    # Ignored, as a parent may have left it, the kernel would wait for children in our place.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    received = take_received()
    _close_all_but({*received.values(), options.report_fd})
    os.chdir("/")
    priority.raise_priority()
    priority.lock_memory()
    signals = Signals()
    descriptors = KeptDescriptors()
    for name, fd in received.items():
        descriptors.keep(name, [fd])
    # Every line is about another daemon or another try: none is a repeat.
    with logs.logging_to(level=options.log_level, repeat_interval_s=0.0):
        try:
            timing = timing_from(os.environ).keeper
            outcome = _keep(options, signals, descriptors, timing)
        except UserError as error:
            # No daemon was started, so this process reports in its place.
            if options.report_fd is not None:
                os.write(options.report_fd, f"{int(error.exit_code)} {error}".encode())
            print(f"commitlogfs: {error}", file=sys.stderr)
            return int(error.exit_code)
        if outcome.leaves_mount:
            detach_unused(options, signals, timing, patient=outcome.in_use)
    return outcome.status


def _keep(options: Options, signals: Signals, descriptors: KeptDescriptors, timing: KeeperTiming) -> Outcome:
    """Raises UserError before it starts anything."""
    lock = _take_name(options.name, timing.lock_s)
    try:
        path = runtime_directory.notify_path(options.name)
        try:
            inbox = Inbox(path)
        except OSError as error:
            raise RefusedError(
                f"{path}: cannot bind the socket ({error.strerror or error}); check owner, mode and space of its "
                "directory"
            ) from error
        try:
            return Keeper(options, inbox, descriptors, signals, timing).run()
        finally:
            inbox.close()
    finally:
        descriptors.close()
        release_file(runtime_directory.keeper_lock_path(options.name), lock, options.name)


def _take_name(name: str, patience_s: float) -> int:
    """The open lock file. Raises RefusedError if another keeper has it, UsageError for an impossible name."""
    path = runtime_directory.keeper_lock_path(name)
    runtime_directory.ensure_runtime_directory()
    fd = hold_file(path, patience_s)
    if fd is None:
        raise RefusedError(f"{name}: its keeper is running already; see `commitlogfs status`")
    return fd


def _close_all_but(wanted: set[int | None]) -> None:
    """A file that a shell or a service had open when it started this process could be one in the mount."""
    edge = FIRST_FD
    for fd in sorted(fd for fd in wanted if fd is not None and fd >= FIRST_FD):
        os.closerange(edge, fd)
        edge = fd + 1
    os.closerange(edge, _HIGHEST_FD)
