"""Entry point of the daemon, which a keeper starts. It does the same as `mount --no-keeper`, but starts faster.

A broker may be waiting for this process, so it imports only what it needs to serve.
"""

import argparse
import logging
import os
import sys

from commitlogfs.console import interrupts
from commitlogfs.console.errors import UserError
from commitlogfs.mount.config.timing import timing_from
from commitlogfs.mount.daemon import daemonize, lifecycle, standby
from commitlogfs.mount.daemon.arguments import configuration_of, make_pool_if_none
from commitlogfs.mount.keeper.standby_call import STANDBY_OPTION
from commitlogfs.mount.linux import descriptor_store, logs, priority


def main() -> int:
    """Serve until the mount ends or the daemon hands it over; returns the exit status (docs/reference/cli.md)."""
    parser = argparse.ArgumentParser(prog="commitlogfs-daemon", description=__doc__)
    parser.add_argument("which", help="configuration name or file; with --init the mountpoint")
    parser.add_argument("--init", metavar="DISK,DISK,...")
    parser.add_argument("--segment-size", metavar="SIZE")
    parser.add_argument("-v", dest="verbose", action="store_true")
    parser.add_argument("-q", dest="quiet", action="store_true")
    parser.add_argument("--report-fd", type=int)
    parser.add_argument(STANDBY_OPTION, dest="standby_fd", type=int)
    chosen = parser.parse_args()
    priority.raise_priority()
    priority.lock_memory()  # before the first thread, which reopening the log starts
    logs.catch_hangup()
    interrupts.unblock()
    report = daemonize.Report(chosen.report_fd)
    level = logging.DEBUG if chosen.verbose else logging.WARNING if chosen.quiet else logging.INFO
    try:
        timing = timing_from(os.environ)
        if chosen.standby_fd is None:
            received = descriptor_store.take_received()
        else:
            received = standby.wait_until_called(chosen.standby_fd, timing.keeper.start_s)
        config = configuration_of(chosen.which, chosen.init, chosen.segment_size)
        with logs.logging_to(level=level):
            if chosen.init is not None:
                make_pool_if_none(config)
            return int(lifecycle.run(config, received, report.ready, timing))
    except UserError as error:
        report.failed(error)
        print(f"commitlogfs: {error}", file=sys.stderr)
        return int(error.exit_code)


if __name__ == "__main__":
    sys.exit(interrupts.run(lambda: main))
