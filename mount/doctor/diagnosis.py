"""What `doctor` says of one thing it looked at."""

from dataclasses import dataclass
from enum import IntEnum

from commitlogfs.store.findings import Finding, Severity


class Level(IntEnum):
    OK = 0
    NOTE = 1
    WARNING = 2
    """Will hurt some day, or hurts a little."""
    PROBLEM = 3
    """Does not work like this."""


@dataclass(frozen=True, slots=True)
class Check:
    """`name` is stable, for programs. `message` says what was looked at, `remedy` is empty if all is well."""

    name: str
    level: Level
    message: str
    remedy: str = ""


def ok(name: str, message: str) -> Check:
    return Check(name, Level.OK, message)


def from_finding(finding: Finding) -> Check:
    level = {Severity.NOTE: Level.NOTE, Severity.WARNING: Level.WARNING}.get(finding.severity, Level.PROBLEM)
    return Check(finding.code.value, level, finding.text, finding.remedy)
