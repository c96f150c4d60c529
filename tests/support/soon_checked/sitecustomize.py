"""Python runs this at its start if the directory is on PYTHONPATH: daemons started so check their disks often."""

import sys

if any("commitlogfs" in argument for argument in sys.orig_argv):
    from commitlogfs.mount.daemon import disk_returns
    from commitlogfs.store.checks import check_policy

    check_policy.INTERVAL_S = 1.0
    check_policy.CONFIRM_S = 0.5
    check_policy.OBSERVE_S = 0.3
    disk_returns.LOOK_INTERVAL_S = 1.0
