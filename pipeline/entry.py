"""Console script of the pipeline. It loads the command so that Ctrl-C prints nothing, even during imports."""

from commitlogfs.console import interrupts
from commitlogfs.console.interrupts import Main


def main() -> int:
    return interrupts.run(_load)


def _load() -> Main:
    from commitlogfs.pipeline.cli import main

    return main
