"""Result of one check of `doctor`."""

from dataclasses import dataclass
from enum import IntEnum

from commitlogfs.store.findings import Finding, Severity


class Level(IntEnum):
    OK = 0
    NOTE = 1
    WARNING = 2
    """It works, but may fail later or in part."""
    PROBLEM = 3
    """It does not work."""


@dataclass(frozen=True, slots=True)
class Check:
    """`name` is a stable name for programs, `message` the fact, `remedy` what to do; it is empty if the level is
    OK."""

    name: str
    level: Level
    message: str
    remedy: str = ""


def ok(name: str, message: str) -> Check:
    return Check(name, Level.OK, message)


def from_finding(finding: Finding) -> Check:
    level = {Severity.NOTE: Level.NOTE, Severity.WARNING: Level.WARNING}.get(finding.severity, Level.PROBLEM)
    return Check(finding.code.value, level, finding.text, finding.remedy)
