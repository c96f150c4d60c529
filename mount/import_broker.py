"""A RocketMQ broker.conf turned into this project's TOML, with a warning for everything that is not as it seems.

Rules, with their source in RocketMQ 5.5.0 (facts sections 7 and 8):

- The file is a Java properties file in ISO-8859-1 (BrokerStartup.SystemConfigFileHelper#loadConfig).
- A key that no setter answers to is ignored without a word; so is an int that does not parse, which a blank
  at the end of the line is enough for. Texts are trimmed (MixAll#properties2Object).
- The three ratios are clamped (`store.thresholds.clamp`).
- Several commitlog paths are separated by commas, unless the system property
  rocketmq.broker.multiPathSplitter says otherwise; their items are not trimmed
  (MultiPathMappedFileQueue#getPaths). RIP-7's text has ':' and is understood too.
"""

import difflib
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import tomlkit
from tomlkit.items import Table

from commitlogfs.mount.config import DEFAULT_SEGMENT_SIZE, LARGEST_SEGMENT_SIZE, SEGMENT_SIZE_UNIT, is_within
from commitlogfs.mount.errors import UsageError
from commitlogfs.mount.units import format_size
from commitlogfs.store.thresholds import Thresholds, clamp

USUAL_MOUNTPOINT: Final = "/var/rocketmq/store/commitlog"

_RATIOS: Final = {
    "clean": "diskMaxUsedSpaceRatio",
    "force": "diskSpaceCleanForciblyRatio",
    "full": "diskSpaceWarningLevelRatio",
}
_USED: Final = (
    "storePathRootDir",
    "storePathCommitLog",
    "readOnlyCommitLogStorePaths",
    "mappedFileSizeCommitLog",
    *_RATIOS.values(),
)
_NOT_USED_YET: Final = (
    "fileReservedTime",
    "deleteWhen",
    "deleteFileBatchMax",
    "deleteCommitLogFilesInterval",
    "destroyMapedFileIntervalForcibly",
)
_REAL_LOOKALIKES: Final = frozenset({"storePathDLedgerCommitLog", "mappedFileSizeTimerLog"})
"""Broker keys in their own right that are nearly spelt like one of the above."""
_SYSTEM_PROPERTY_PREFIX: Final = "rocketmq.broker."
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")

_JAVA_BLANKS: Final = "".join(map(chr, range(0x21)))
"""What Java's String#trim removes."""


class Imported(NamedTuple):
    """The TOML, with comments, and one line per thing the operator should know."""

    toml_text: str
    warnings: list[str]


def import_broker_conf(path: str | os.PathLike[str]) -> Imported:
    """Translate a broker.conf. Raises UsageError where the file cannot be read or is no properties file.

    Nothing but that file is read: paths are not looked at. The TOML loads with `load_config` if the
    broker was given several commitlog paths; from a single path only the mountpoint follows and the disks
    are left to be filled in.
    """
    source = os.fspath(path)
    try:
        text = Path(path).read_bytes().decode("iso-8859-1")
    except FileNotFoundError:
        raise UsageError(f"{source}: no such file: name the broker's configuration (mqbroker -c FILE)") from None
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise UsageError(f"{source}: cannot be read ({reason}): name the broker's configuration") from None
    try:
        entries = parse_properties(text)
    except PropertiesError as error:
        raise UsageError(f"{source}: {error}") from None
    broker = _Broker(dict(entries))
    layout = _read_layout(broker)
    segment_size = _read_segment_size(broker)
    thresholds = _read_thresholds(broker)
    broker.warn_of_other_keys([key for key, _ in entries])
    return Imported(_write_toml(source, layout, segment_size, thresholds), broker.warnings)


# --- Java properties ---------------------------------------------------------------------------------


class PropertiesError(ValueError):
    """Text that java.util.Properties#load refuses; a broker would not start with it."""


_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_PROPERTY_BLANKS: Final = " \t\f"


def parse_properties(text: str) -> list[tuple[str, str]]:
    """Keys and values in file order, repeats included, as java.util.Properties#load reads them.

    Raises PropertiesError for a broken \\uXXXX.
    """
    return [_split_entry(line, number) for number, line in _logical_lines(text)]


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """(number of its first line, content) without comments and blank lines, continuations joined."""
    lines: list[tuple[int, str]] = []
    pending: tuple[int, str] | None = None
    for number, natural in enumerate(re.split(r"\r\n|\r|\n", text), start=1):
        line = natural.lstrip(_PROPERTY_BLANKS)
        first, before = pending or (number, "")
        if not before and line[:1] in ("", "#", "!"):  # a lone backslash does not begin an entry either
            pending = None
            continue
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            pending = (first, before + line[:-1])
            continue
        lines.append((first, before + line))
        pending = None
    if pending is not None:
        lines.append(pending)
    return lines


def _split_entry(line: str, number: int) -> tuple[str, str]:
    end = 0
    while end < len(line) and line[end] not in "=:" + _PROPERTY_BLANKS:
        end += 2 if line[end] == "\\" else 1
    value = line[end:].lstrip(_PROPERTY_BLANKS)
    if value[:1] in ("=", ":"):
        value = value[1:].lstrip(_PROPERTY_BLANKS)
    return _unescape(line[:end], number), _unescape(value, number)


def _unescape(text: str, number: int) -> str:
    def replace(match: re.Match[str]) -> str:
        escaped = match[1]
        if not escaped.startswith("u"):
            return _ESCAPES.get(escaped, escaped)
        if len(escaped) != 5:
            raise PropertiesError(f"line {number}: a \\u without four hex digits: a broker does not start with it")
        return chr(int(escaped[1:], 16))

    plain = re.sub(r"\\(u[0-9A-Fa-f]{4}|.|$)", replace, text, flags=re.DOTALL)
    # Java's chars are UTF-16 units: two escapes may make one character.
    return plain.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


# --- what the broker makes of it ---------------------------------------------------------------------


@dataclass(slots=True)
class _Broker:
    """Values as the broker would hold them; every surprise on the way becomes a warning."""

    properties: dict[str, str]
    warnings: list[str] = field(default_factory=list)

    def warn(self, text: str) -> None:
        self.warnings.append(_CONTROL.sub(" ", text))

    def warn_of_other_keys(self, keys: list[str]) -> None:
        """Repeats, misspellings, and what has no counterpart here. `keys` in file order, repeats included."""
        known = (*_USED, *_NOT_USED_YET)
        by_lower_case = {key.lower(): key for key in known}
        for key in dict.fromkeys(keys):
            if key in known:
                if keys.count(key) > 1:
                    self.warn(f"{key} is given {keys.count(key)} times: the broker takes the last one")
                if key in _NOT_USED_YET:
                    self.warn(f"not used yet: {key} (the broker itself goes on applying it)")
            elif key.startswith(_SYSTEM_PROPERTY_PREFIX):
                self.warn(f"{key} is ignored by the broker in this file: it is a Java system property (-D)")
            elif key not in _REAL_LOOKALIKES:
                close = difflib.get_close_matches(key.lower(), by_lower_case, n=1, cutoff=0.8)
                if close:
                    meant = by_lower_case[close[0]]
                    what = "its default is used" if meant not in self.properties else f"{meant} is given too"
                    self.warn(f"{key} is ignored by the broker: did you mean {meant}? ({what})")
        if self.properties.get("enableDLegerCommitLog", "").lower() == "true":
            self.warn("enableDLegerCommitLog = true: DLedger keeps a log of its own, which is not served here")

    def text(self, key: str) -> str | None:
        """A trimmed text, None where it is not set."""
        value = self.properties.get(key)
        if value is None:
            return None
        if not value.isascii():
            self.warn(
                f"{key} is not plain ASCII: the broker reads the file as ISO-8859-1, so check the name on disk"
            )
        trimmed = value.strip(_JAVA_BLANKS)
        if not trimmed:
            self.warn(f"{key} is empty: taken as not set")
        return trimmed or None

    def integer(self, key: str, default: int) -> int | None:
        """A Java int, None where it is not set or where the broker ignores it."""
        value = self.properties.get(key)
        if value is None:
            return None
        if re.fullmatch(r"[+-]?[0-9]+", value) and -(2**31) <= int(value) < 2**31:
            return int(value)
        cause = "a blank at its end" if re.fullmatch(r"[+-]?[0-9]+\s+", value) else "it is no Java int"
        self.warn(f"{key} = {value!r} is ignored by the broker ({cause}): its default {default} is used")
        return None

    def paths(self, key: str, value: str | None) -> dict[str, str]:
        """The path list in `value` as the broker splits it, or RIP-7's with ':'; {} where it is not set.

        Maps each path, without a slash at its end, to the letters the broker has for it.
        """
        if value is None:
            return {}
        separator = ","
        if "," not in value and all(item.startswith("/") for item in value.split(":")):
            separator = ":"
        if separator == ":" and ":" in value:
            self.warn(
                f"{key} is split at ':' as RIP-7 writes it; an unmodified broker splits at ',' only "
                "(system property rocketmq.broker.multiPathSplitter)"
            )
        return self._clean_items(key, value.split(separator))

    def _clean_items(self, key: str, items: list[str]) -> dict[str, str]:
        cleaned: dict[str, str] = {}
        for item in items:
            name = item.strip(_JAVA_BLANKS)
            if not name:
                self.warn(f"{key} has an empty item: it is left out")
                continue
            if name != item:
                self.warn(
                    f"{key}: the broker does not trim the item {item!r} and uses a folder of that very name; "
                    f"{name} is written: look where the segments really are"
                )
            path = name.rstrip("/") or "/"
            if path in cleaned:
                self.warn(f"{key} names {path} twice: once is enough")
            else:
                cleaned[path] = item
        return cleaned


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where the segments are, and where they shall be seen. `mountpoint` "" and no `disks`: to be filled in."""

    mountpoint: str
    disks: tuple[str, ...]
    readonly: frozenset[str]


def _read_layout(broker: _Broker) -> _Layout:
    value = broker.text("storePathCommitLog")
    root = broker.text("storePathRootDir")
    paths = broker.paths("storePathCommitLog", value)
    readonly = broker.paths("readOnlyCommitLogStorePaths", broker.text("readOnlyCommitLogStorePaths"))
    for path in {**paths, **readonly}:
        if not path.startswith("/"):
            broker.warn(f"{path!r} is not absolute: write the whole path, from / on, in its place")
    if value is not None and ("," in value or len(paths) > 1):
        return _several_paths(broker, paths, readonly, root)
    if readonly:
        broker.warn("readOnlyCommitLogStorePaths has no effect with a single commitlog path: left out")
    if paths:
        mountpoint = next(iter(paths))
    elif root:
        mountpoint = _join(root, "commitlog")
    else:
        mountpoint = USUAL_MOUNTPOINT
        broker.warn(
            "storePathCommitLog and storePathRootDir are not set, so the segments are in store/commitlog of the "
            f"broker user's home; {mountpoint} is proposed: set storePathCommitLog to it"
        )
    broker.warn(f"there is a single commitlog path: it becomes the mountpoint {mountpoint}; fill in the [[disks]]")
    return _Layout(mountpoint, (), frozenset())


def _several_paths(broker: _Broker, paths: dict[str, str], readonly: dict[str, str], root: str | None) -> _Layout:
    disks = list(paths)
    for path, spelling in readonly.items():
        if path not in disks:
            disks.append(path)  # the broker loads these too (MultiPathMappedFileQueue#load)
        elif paths[path] != spelling:
            broker.warn(
                f"readOnlyCommitLogStorePaths has {spelling!r}, storePathCommitLog {paths[path]!r}: the broker "
                f"compares letter by letter and still writes there; {path} is written as readonly"
            )
    if disks and not set(disks) - set(readonly):
        broker.warn("every disk is read-only: no new segment can be made (the broker divides by zero)")
    candidates = [_join(root, "commitlog")] if root and root.startswith("/") else []
    candidates.append(USUAL_MOUNTPOINT)
    for mountpoint in candidates:
        if not any(is_within(mountpoint, disk) or is_within(disk, mountpoint) for disk in disks):
            broker.warn(
                f"the mountpoint {mountpoint} is proposed: set storePathCommitLog to it and remove "
                "readOnlyCommitLogStorePaths when the broker moves onto the mount"
            )
            break
    else:
        mountpoint = ""
        broker.warn(f"no mountpoint follows: {' and '.join(candidates)} overlap the disks; fill one in")
    return _Layout(mountpoint, tuple(disks), frozenset(readonly))


def _join(folder: str, name: str) -> str:
    return f"{folder.rstrip('/')}/{name}"


def _read_segment_size(broker: _Broker) -> int | None:
    size = broker.integer("mappedFileSizeCommitLog", DEFAULT_SEGMENT_SIZE)
    if size is not None and (not 0 < size <= LARGEST_SEGMENT_SIZE or size % SEGMENT_SIZE_UNIT):
        broker.warn(
            f"mappedFileSizeCommitLog = {size} cannot be served: segments here are a multiple of "
            f"{SEGMENT_SIZE_UNIT} bytes, up to {LARGEST_SEGMENT_SIZE}"
        )
    return size


def _read_thresholds(broker: _Broker) -> dict[str, int]:
    """What [thresholds] has to say, in the order of writing.

    A broker acts at the lower of two limits where their order is reversed
    (CleanCommitLogService#isSpaceToDelete tests the higher one first), so the weaker one is lowered.
    """
    defaults = Thresholds()
    written: dict[str, int] = {}
    effective: dict[str, int] = {}
    stronger = ""
    for key in ("full", "force", "clean"):
        name = _RATIOS[key]
        default: int = getattr(defaults, key)
        given = broker.integer(name, default)
        value = default
        if given is not None:
            value, warning = clamp(key, given)
            written[key] = value
            if warning:
                broker.warn(f"{name} = {warning}")
        if stronger and value > effective[stronger]:
            origin = "" if given is not None else " (its default)"
            limit = effective[stronger]
            broker.warn(
                f"{name} = {value}{origin} is above {_RATIOS[stronger]} = {limit}, where the broker acts anyway: "
                f"thresholds.{key} = {limit} is written"
            )
            value = written[key] = limit
        effective[key] = value
        stronger = key
    return {key: written[key] for key in _RATIOS if key in written}


# --- writing -----------------------------------------------------------------------------------------


def _write_toml(source: str, layout: _Layout, segment_size: int | None, thresholds: dict[str, int]) -> str:
    document = tomlkit.document()
    document.add(
        tomlkit.comment(_CONTROL.sub(" ", f"Imported from {Path(source).name} by commitlogfs config import."))
    )
    document.add(tomlkit.nl())
    if layout.mountpoint:
        document.add(tomlkit.comment("The one commitlog directory the broker sees: its storePathCommitLog."))
        document.add("mountpoint", tomlkit.string(layout.mountpoint))
    else:
        document.add(
            tomlkit.comment("FILL IN the one commitlog directory the broker is to see, apart from the disks:")
        )
        document.add(tomlkit.comment(f'mountpoint = "{USUAL_MOUNTPOINT}"'))
    document.add(tomlkit.nl())
    document.add(
        tomlkit.comment("mappedFileSizeCommitLog" + ("" if segment_size is not None else " (its default)"))
    )
    size = DEFAULT_SEGMENT_SIZE if segment_size is None else segment_size
    document.add("segment_size", tomlkit.string(format_size(size)) if size >= 0 else tomlkit.integer(size))
    document.add(tomlkit.nl())
    if thresholds:
        document.add("thresholds", _thresholds_table(thresholds))
    if layout.disks:
        disks = tomlkit.aot()
        for path in layout.disks:
            disk = tomlkit.table()
            disk.add("path", tomlkit.string(path))
            if path in layout.readonly:
                disk.add("readonly", tomlkit.boolean("true").comment("readOnlyCommitLogStorePaths"))
            disks.append(disk)
        document.add("disks", disks)
    else:
        for line in _FILL_IN_DISKS:
            document.add(tomlkit.comment(line))
    return tomlkit.dumps(document).rstrip("\n") + "\n"


_FILL_IN_DISKS: Final = (
    "FILL IN one [[disks]] table for each disk: a folder on a filesystem of its own.",
    "The segments that lie in the mountpoint's folder today belong on one of them: with the broker",
    "stopped, move them into that disk's folder.",
    "",
    "[[disks]]",
    'path = "/data1/commitlog"',
    "",
    "[[disks]]",
    'path = "/data2/commitlog"',
)


def _thresholds_table(values: dict[str, int]) -> Table:
    table = tomlkit.table()
    for key, value in values.items():
        table.add(key, tomlkit.integer(value).comment(_RATIOS[key]))
    table.add(tomlkit.nl())
    return table
