"""The console script of the pipeline: it loads its command so that Ctrl-C is silent from the beginning."""

from commitlogfs.console import interrupts
from commitlogfs.console.interrupts import Main


def main() -> int:
    return interrupts.run(_load)


def _load() -> Main:
    from commitlogfs.pipeline.cli import main

    return main
