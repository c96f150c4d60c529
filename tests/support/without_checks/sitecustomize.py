"""Python runs this at its start if the directory is on PYTHONPATH: daemons started so do not check their disks."""

import sys

if any("commitlogfs" in argument for argument in sys.orig_argv):
    import trio

    from commitlogfs.fusefs.disks.disk_checks import DiskChecks

    async def _run(_: DiskChecks, __: float = 0.0) -> None:
        await trio.sleep_forever()

    DiskChecks.run = _run  # type: ignore[method-assign, assignment]
