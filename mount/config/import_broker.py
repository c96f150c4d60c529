"""Import of a RocketMQ broker.conf as TOML, with a warning for every value that the broker ignores or changes.

Values are clamped as RocketMQ 5.5.0 clamps them (`store.thresholds.clamp`, `mount.config.import_retention`).
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import tomlkit
from tomlkit.items import Table

from commitlogfs.console.errors import UsageError
from commitlogfs.console.units import format_size
from commitlogfs.mount.config.import_retention import RETENTION_KEYS, read_retention
from commitlogfs.mount.config.model import DEFAULT_SEGMENT_SIZE, LARGEST_SEGMENT_SIZE, SEGMENT_SIZE_UNIT, is_within
from commitlogfs.store.broker_conf import CONTROL, BrokerConf, PropertiesError, parse_properties
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
    *RETENTION_KEYS,
)


class Imported(NamedTuple):
    """The TOML with comments, and warnings of one line each."""

    toml_text: str
    warnings: list[str]


def import_broker_conf(path: str | os.PathLike[str]) -> Imported:
    """Configuration that corresponds to a broker.conf. Raises UsageError if the file cannot be read or parsed.

    Only that file is read; the paths in it need not exist. From several commitlog paths, the result is a complete
    configuration. From a single path only the mountpoint follows, and the operator has to fill in the disks.
    """
    source = os.fspath(path)
    try:
        text = Path(path).read_bytes().decode("iso-8859-1")
    except FileNotFoundError:
        raise UsageError(f"{source}: no such file; give the broker's configuration (mqbroker -c FILE)") from None
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise UsageError(f"{source}: cannot be read ({reason}); give the broker's configuration") from None
    try:
        entries = parse_properties(text)
    except PropertiesError as error:
        raise UsageError(f"{source}: {error}") from None
    broker = BrokerConf(dict(entries))
    layout = _read_layout(broker)
    segment_size = _read_segment_size(broker)
    thresholds = _read_thresholds(broker)
    retention = read_retention(broker)
    broker.warn_of_other_keys([key for key, _ in entries], _USED)
    return Imported(_write_toml(source, layout, segment_size, thresholds, retention), broker.warnings)


# --- the broker's settings ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Layout:
    """Disks and mountpoint. An empty `mountpoint`, or no `disks`, means that the operator has to fill them in."""

    mountpoint: str
    disks: tuple[str, ...]
    readonly: frozenset[str]


def _read_layout(broker: BrokerConf) -> _Layout:
    value = broker.text("storePathCommitLog")
    root = broker.text("storePathRootDir")
    paths = broker.paths("storePathCommitLog", value)
    readonly = broker.paths("readOnlyCommitLogStorePaths", broker.text("readOnlyCommitLogStorePaths"))
    for path in {**paths, **readonly}:
        if not path.startswith("/"):
            broker.warn(f"{path!r} is not absolute; replace it by the absolute path")
    if value is not None and ("," in value or len(paths) > 1):
        return _several_paths(broker, paths, readonly, root)
    if readonly:
        broker.warn("readOnlyCommitLogStorePaths has no effect with a single commitlog path, so it is left out")
    if paths:
        mountpoint = next(iter(paths))
    elif root:
        mountpoint = _join(root, "commitlog")
    else:
        mountpoint = USUAL_MOUNTPOINT
        broker.warn(
            "storePathCommitLog and storePathRootDir are not set, so the segments are in store/commitlog of the "
            f"broker user's home; the mountpoint {mountpoint} is proposed: set storePathCommitLog to it"
        )
    broker.warn(
        f"there is a single commitlog path, which becomes the mountpoint {mountpoint}; fill in the [[disks]]"
    )
    return _Layout(mountpoint, (), frozenset())


def _several_paths(
    broker: BrokerConf, paths: dict[str, str], readonly: dict[str, str], root: str | None
) -> _Layout:
    disks = list(paths)
    for path, spelling in readonly.items():
        if path not in disks:
            disks.append(path)  # the broker loads these too (MultiPathMappedFileQueue#load)
        elif paths[path] != spelling:
            broker.warn(
                f"readOnlyCommitLogStorePaths has {spelling!r}, storePathCommitLog {paths[path]!r}: for the broker "
                f"these are different paths, so it writes there; here {path} becomes readonly"
            )
    if disks and not set(disks) - set(readonly):
        broker.warn("every disk is read-only, so no new segment can be made (the broker fails: it divides by zero)")
    candidates = [_join(root, "commitlog")] if root and root.startswith("/") else []
    candidates.append(USUAL_MOUNTPOINT)
    for mountpoint in candidates:
        if not any(is_within(mountpoint, disk) or is_within(disk, mountpoint) for disk in disks):
            broker.warn(
                f"the mountpoint {mountpoint} is proposed: before the broker uses the mount, set "
                "storePathCommitLog to it and remove readOnlyCommitLogStorePaths"
            )
            break
    else:
        mountpoint = ""
        broker.warn(f"no mountpoint can be proposed, as {' and '.join(candidates)} overlap the disks; fill one in")
    return _Layout(mountpoint, tuple(disks), frozenset(readonly))


def _join(directory: str, name: str) -> str:
    return f"{directory.rstrip('/')}/{name}"


def _read_segment_size(broker: BrokerConf) -> int | None:
    size = broker.integer("mappedFileSizeCommitLog", DEFAULT_SEGMENT_SIZE)
    if size is not None and (not 0 < size <= LARGEST_SEGMENT_SIZE or size % SEGMENT_SIZE_UNIT):
        broker.warn(
            f"mappedFileSizeCommitLog = {size} is not supported; commitlogfs supports multiples of "
            f"{SEGMENT_SIZE_UNIT} bytes, up to {LARGEST_SEGMENT_SIZE}"
        )
    return size


def _read_thresholds(broker: BrokerConf) -> dict[str, int]:
    """Content of [thresholds], in the order of the file.

    If the order of two limits is reversed, a broker acts at the lower one (CleanCommitLogService#isSpaceToDelete
    tests the stronger one first), so the weaker one is lowered.
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
                f"{name} = {value}{origin} is above {_RATIOS[stronger]} = {limit}, at which the broker acts "
                f"already; the new configuration gets thresholds.{key} = {limit}"
            )
            value = written[key] = limit
        effective[key] = value
        stronger = key
    return {key: written[key] for key in _RATIOS if key in written}


# --- writing -----------------------------------------------------------------------------------------


def _write_toml(
    source: str, layout: _Layout, segment_size: int | None, thresholds: dict[str, int], retention: Table
) -> str:
    document = tomlkit.document()
    document.add(
        tomlkit.comment(CONTROL.sub(" ", f"Imported from {Path(source).name} by commitlogfs config import."))
    )
    document.add(tomlkit.nl())
    if layout.mountpoint:
        document.add(tomlkit.comment("The commitlog directory of the broker: its storePathCommitLog."))
        document.add("mountpoint", tomlkit.string(layout.mountpoint))
    else:
        document.add(
            tomlkit.comment("FILL IN the commitlog directory of the broker; it must be outside of the disks:")
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
    document.add("retention", retention)
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
    "FILL IN one [[disks]] table for each disk: a directory on a filesystem of its own.",
    "Stop the broker, and move the segments that are in the mountpoint's directory",
    "into the directory of one of the disks.",
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
