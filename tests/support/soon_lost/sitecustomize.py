"""Python runs this at its start if the directory is on PYTHONPATH: daemons started so give a disk of which nothing
can be read up soon."""

import sys

if any("commitlogfs" in argument for argument in sys.orig_argv):
    from commitlogfs.store.disks import health

    health.LOST_AFTER_S = 5.0
