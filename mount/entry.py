"""The console scripts of the filesystem: they load a command so that Ctrl-C never shows a traceback."""

from commitlogfs.console import interrupts
from commitlogfs.console.interrupts import Main


def command_line() -> int:
    return interrupts.run(_load_command_line)


def daemon() -> int:
    return interrupts.run(_load_daemon)


def mount_helper() -> int:
    return interrupts.run(_load_mount_helper)


def _load_command_line() -> Main:
    from commitlogfs.mount.cli import load

    return load()


def _load_daemon() -> Main:
    from commitlogfs.mount.serve import main

    return main


def _load_mount_helper() -> Main:
    from commitlogfs.mount.mount_helper import main

    return main
