"""Checks of the broker's process: descriptors and mappings for all segments, ASCII digits. Pure except
`find_broker`."""

import os
import re
import resource
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from commitlogfs.mount.doctor.diagnosis import Check, Level, ok
from commitlogfs.mount.linux.holders import find_holders

OTHER_FILES: Final = 5_000
"""Number of files that a broker has open or mapped besides segments: consumequeues, indexes, libraries,
connections."""
_ROUND: Final = 10_000

_OTHER_DIGITS: Final = frozenset(
    "ar as bn ckb dz fa ks mni mr my mzn ne ps sa sat sd ur uz lrc bgn".split()  # noqa: SIM905
)
"""Languages for which Java may write numbers in other digits than 0 to 9 (CLDR's default numbering systems)."""


@dataclass(frozen=True, slots=True)
class BrokerView:
    """The process whose limits and locale are checked: a running broker, else this one as the best guess."""

    name: str
    running: bool
    open_files: int
    """Hard limit of open files; Java raises the soft limit to it."""
    environment: Mapping[str, str] = field(default_factory=dict)


def find_broker(mountpoint: str) -> BrokerView:
    """The Java process that holds the mount, if there is one and this user can read it; else this process."""
    for holder in find_holders(mountpoint, exclude=[os.getpid()]):
        if holder.comm == "java":
            try:
                return _view_process(holder.pid)
            except (OSError, ValueError):
                break
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return BrokerView("a process started from here", False, _unlimited(hard), dict(os.environ))


def check_open_files(segments: int, broker: BrokerView) -> Check:
    required = _rounded_up(segments + OTHER_FILES)
    text = f"the pool can hold {segments:,} segments, which the broker's process keeps open; "
    text += f"{broker.name} may open {broker.open_files:,} files"
    if broker.open_files >= segments + OTHER_FILES:
        return ok("open-files", text)
    remedy = f"set LimitNOFILE={required} in the broker's unit (or ulimit -Hn {required} before it starts)"
    # Without a running broker this is a guess: its unit may set another limit.
    return Check("open-files", Level.WARNING if broker.running else Level.NOTE, text, remedy)


def check_mappings(segments: int, max_map_count: int) -> Check:
    required = _rounded_up(segments + OTHER_FILES)
    text = f"the pool can hold {segments:,} segments, which the broker's process keeps mapped; "
    text += f"vm.max_map_count is {max_map_count:,}"
    if max_map_count >= segments + OTHER_FILES:
        return ok("mappings", text)
    remedy = f"sysctl -w vm.max_map_count={required}, and write it to /etc/sysctl.d"
    return Check("mappings", Level.WARNING, text, remedy)


def check_locale(broker: BrokerView) -> Check:
    environment = broker.environment
    name = next((value for key in ("LC_ALL", "LC_CTYPE", "LANG") if (value := environment.get(key))), "C")
    language = re.split(r"[_.@]", name)[0].lower()
    if language not in _OTHER_DIGITS:
        return ok("locale", f"locale {name} ({broker.name}): segment names have ASCII digits")
    return Check(
        "locale",
        Level.WARNING,
        f"locale {name} ({broker.name}): Java may write segment names in other digits than 0 to 9, "
        "which are refused",
        "set LC_ALL=C.UTF-8 in the broker's unit",
    )


def _view_process(pid: int) -> BrokerView:
    directory = Path(f"/proc/{pid}")
    limit = re.search(r"^Max open files +\S+ +(\S+)", (directory / "limits").read_text(), re.MULTILINE)
    if limit is None:
        raise ValueError(f"{directory}/limits shows no open files")
    hard = _unlimited(-1) if limit[1] == "unlimited" else int(limit[1])
    pairs = os.fsdecode((directory / "environ").read_bytes()).split("\0")
    environment = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    return BrokerView(f"the broker (pid {pid})", True, hard, environment)


def _unlimited(limit: int) -> int:
    return 2**31 if limit == resource.RLIM_INFINITY else limit


def _rounded_up(number: int) -> int:
    return -(-number // _ROUND) * _ROUND
