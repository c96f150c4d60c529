"""Python runs this at its start if the directory is on PYTHONPATH: daemons started so probe slow disks soon."""

import sys

if any("commitlogfs" in argument for argument in sys.orig_argv):
    from commitlogfs.store.disks import health

    health.PROBE_AFTER_S = 15.0
