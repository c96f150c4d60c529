"""The configuration file of one mount: TOML in, a frozen `Config` out, or errors with a remedy.

Every accepted key has an effect, and an unknown key is an error. Nothing here touches a disk: the store checks
whether the directories exist and belong to the pool.
"""

import difflib
import errno
import math
import os
import re
import stat
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError

from commitlogfs.console.errors import UsageError
from commitlogfs.console.units import format_size, parse_size
from commitlogfs.console.user_directories import user_directory
from commitlogfs.mount.config.errors import (
    CONTROL_CHARACTER,
    EXAMPLES,
    ConfigError,
    Problem,
    explain,
    key_paths,
    one_line,
)
from commitlogfs.mount.config.retention import RetentionTable, retention_rules
from commitlogfs.mount.config.scrub import ScrubTable, scrub_rules
from commitlogfs.mount.config.table import StrictTable
from commitlogfs.store.retention import RetentionRules, Trigger
from commitlogfs.store.scrub.schedule import ScrubRules
from commitlogfs.store.thresholds import ThresholdError, Thresholds

Placement = Literal["round-robin", "modulo", "weighted"]
OnMissing = Literal["refuse", "degraded"]
Passthrough = Literal["auto", "required", "off"]

SYSTEM_DIRECTORY = Path("/etc/commitlogfs")
DEFAULT_SEGMENT_SIZE: Final = 2**30
SEGMENT_SIZE_UNIT: Final = 4096
LARGEST_SEGMENT_SIZE: Final = 2**31 - SEGMENT_SIZE_UNIT
"""RocketMQ stores mappedFileSizeCommitLog in a signed 32-bit int; this is the last whole page below its limit."""

_AT_END: Final = " (at end of document)"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, slots=True)
class DiskConfig:
    """One member disk as configured. `path` is absolute and normalised."""

    path: str
    readonly: bool = False
    weight: float = 1.0
    thresholds: Thresholds = field(default_factory=Thresholds)


@dataclass(frozen=True, slots=True)
class Config:
    """Effective configuration of one mount, with every default, and `[thresholds]` merged into each disk."""

    name: str
    """Stem of the file's name; also the name of the control socket and of the systemd instance."""
    mountpoint: str
    disks: tuple[DiskConfig, ...]
    segment_size: int = DEFAULT_SEGMENT_SIZE
    """Size in bytes."""
    placement: Placement = "round-robin"
    on_missing: OnMissing = "refuse"
    passthrough: Passthrough = "auto"
    allow_other: bool = False
    """Whether users other than the daemon's may use the mount. Default: true for root."""
    refuse_reads_when_full: bool = False
    thresholds: Thresholds = field(default_factory=Thresholds)
    retention: RetentionRules = field(default_factory=RetentionRules)
    """`[retention]`, and the file's `trigger`."""
    scrub: ScrubRules = field(default_factory=ScrubRules)
    file: str | None = None
    """Absolute path of the configuration file, which a successor reads again."""
    given: frozenset[str] = frozenset()
    """Key paths that the file sets (`disks[0].weight`); all other values are defaults."""


# --- finding and loading ---------------------------------------------------------------------------------


def config_path(name_or_path: str) -> Path:
    """The file meant by a command's NAME or FILE argument.

    A text with a slash or ending in `.toml` is a file and returned as it is. NAME means NAME.toml in
    /etc/commitlogfs; for users other than root, first in $XDG_CONFIG_HOME/commitlogfs (default ~/.config). Raises
    ConfigError if there is no such file.
    """
    if "/" in name_or_path or name_or_path.endswith(".toml"):
        return Path(name_or_path)
    if _NAME.fullmatch(name_or_path) is None:
        raise ConfigError(
            repr(name_or_path),
            Problem("", "not a name of a configuration; write NAME, or a path such as ./NAME.toml"),
        )
    candidates = [directory / f"{name_or_path}.toml" for directory in config_directories()]
    for candidate in candidates:
        if _may_exist(candidate):
            return candidate
    paths = " or ".join(map(str, candidates))
    close = difflib.get_close_matches(name_or_path, [path.stem for path in list_configs()], n=1)
    advice = f"did you mean {close[0]}?" if close else f"create {paths}, or give a file"
    raise ConfigError(name_or_path, Problem("", f"no such configuration; {advice}"))


def default_config_path() -> Path:
    """The file meant by a command without NAME: the only one there is. Raises ConfigError otherwise."""
    found = list_configs()
    if len(found) == 1:
        return found[0]
    directories = " and ".join(map(str, config_directories()))
    if found:
        names = ", ".join(dict.fromkeys(path.stem for path in found))
        raise ConfigError(directories, Problem("", f"several configurations; give one of {names}"))
    raise ConfigError(directories, Problem("", "no configuration; create NAME.toml there, or give a file"))


def list_configs() -> list[Path]:
    """Every configuration file of `config_directories`, in that order.

    A directory of the user that cannot be read counts as empty. Raises ConfigError if the system's cannot be read.
    """
    found: list[Path] = []
    for directory in config_directories():
        try:
            found += sorted(path for path in directory.iterdir() if path.name.endswith(".toml"))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            if directory == SYSTEM_DIRECTORY:
                reason = os.strerror(error.errno or 0)
                problem = Problem("", f"cannot be read ({reason}); run as root, or give a file")
                raise ConfigError(str(directory), problem) from None
    return found


def config_directories() -> tuple[Path, ...]:
    """Directories in which NAME is searched; the first match counts."""
    own = None if os.geteuid() == 0 else user_directory("XDG_CONFIG_HOME", ".config")
    return (SYSTEM_DIRECTORY,) if own is None else (own / "commitlogfs", SYSTEM_DIRECTORY)


def _may_exist(candidate: Path) -> bool:
    """Whether the file exists; True if this user cannot find out, except below $HOME, which may be another
    user's."""
    try:
        candidate.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return candidate.parent == SYSTEM_DIRECTORY
    return True


def _read_file(path: Path) -> bytes:
    """Content of a regular file. Another kind, such as a fifo, could block the reader. Raises OSError."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "is not a regular file")
        return file.read()


def load_config(path: str | os.PathLike[str]) -> Config:
    """Read and check a configuration file. Raises ConfigError."""
    source = os.fspath(path)
    try:
        content = _read_file(Path(path))
    except FileNotFoundError:
        raise ConfigError(source, Problem("", "no such file; create it or correct the path")) from None
    except OSError as error:
        raise ConfigError(source, Problem("", f"cannot be read ({error.strerror}); make it readable")) from None
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ConfigError(source, Problem("", f"line {line} is not UTF-8; save the file as UTF-8")) from None
    return replace(parse_config(text, Path(path).stem, source), file=str(Path(path).absolute()))


def _describe_toml(error: Exception, text: str) -> str:
    """The error, its line, and the remedy. Python names the end of the text for an array that is never closed."""
    reason = one_line(str(error))
    if not reason.endswith(_AT_END):
        return f"{reason}; correct the line"
    lines = text.splitlines(keepends=True)
    for number in range(len(lines) - 1, -1, -1):
        try:
            tomllib.loads("".join(lines[:number]))
        except (ValueError, RecursionError):
            continue
        return f"{reason.removesuffix(_AT_END)}, in what begins at line {number + 1}; close or complete it"
    return f"{reason}; complete it"


def parse_config(text: str, name: str, source: str) -> Config:
    """The configuration in a TOML text. Errors call it `source`. Raises ConfigError."""
    if _NAME.fullmatch(name) is None:
        raise ConfigError(
            source,
            Problem("", f"{name!r} cannot be a mount's name; rename the file, with letters, digits, '.', '_', '-'"),
        )
    try:
        raw = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(source, Problem("", f"not valid TOML: {_describe_toml(error, text)}")) from None
    try:
        file = _File.model_validate(raw)
    except ValidationError as error:
        found = error.errors(include_url=False)
        raise ConfigError(source, *(explain(details, _KEYS) for details in found)) from None
    problems: list[Problem] = []
    config = _effective(file, name, frozenset(key_paths(raw)), problems)
    problems += _layout_problems(config)
    if problems:
        raise ConfigError(source, *problems)
    return config


def disks_from_list(text: str) -> tuple[DiskConfig, ...]:
    """The disks of `mount --init DISK1,DISK2`, with default settings.

    Relative paths start at the current directory. Raises ConfigError for an empty item, a disk that is given twice,
    or one inside another.
    """
    items = text.split(",")
    if not all(items):
        raise ConfigError(repr(text), Problem("", "an item of the disk list is empty; write DISK1,DISK2"))
    try:
        disks = tuple(DiskConfig(path_argument(item)) for item in items)
    except UsageError as error:
        raise ConfigError(repr(text), Problem("", str(error))) from None
    problems = tuple(_overlaps(disks))
    if problems:
        raise ConfigError(repr(text), *problems)
    return disks


def quick_config(name: str, mountpoint: str, disk_list: str, segment_size: int = DEFAULT_SEGMENT_SIZE) -> Config:
    """A configuration without a file, for `mount --init`, checked as one from a file. Raises ConfigError."""
    source = "mount --init"
    disks = disks_from_list(disk_list)
    try:
        config = Config(
            name=name,
            mountpoint=path_argument(mountpoint),
            disks=disks,
            segment_size=checked_segment_size(segment_size),
            allow_other=os.geteuid() == 0,
        )
    except (UsageError, ValueError) as error:
        raise ConfigError(source, Problem("", str(error))) from None
    problems = _layout_problems(config)
    if problems:
        raise ConfigError(source, *problems)
    return config


# --- the file's shape ------------------------------------------------------------------------------------


def normal_path(value: str) -> str:
    """An absolute path without '//', '/.' or a slash at its end. Raises ValueError with a message of one line."""
    shown = repr(value)
    if CONTROL_CHARACTER.search(value):
        raise ValueError(f"{shown} has a control character; correct the path")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{shown} is not UTF-8, so no configuration file can name it; rename it") from None
    if not value.startswith("/"):
        raise ValueError(f"{shown} is not absolute; write the whole path, from / on")
    parts = [part for part in value.split("/") if part not in ("", ".")]
    if ".." in parts:
        # Through a symlink, a/../b may differ from b, so paths with '..' cannot be compared as text.
        raise ValueError(f"{shown} has '..'; write the path without it")
    return "/" + "/".join(parts)


def path_argument(value: str) -> str:
    """A normal path from one of the command line, which may be relative and may have '..'. Raises UsageError."""
    if not value:
        raise UsageError("a path is empty; write the path, or . for the current directory")
    path = Path.cwd() / value
    try:
        return normal_path(str(path.resolve() if ".." in path.parts else path))
    except ValueError as error:
        raise UsageError(str(error)) from None


def checked_segment_size(value: int) -> int:
    """`value`, if a pool can have this segment size. Raises ValueError with a message of one line."""
    shown = format_size(value)
    if value <= 0:
        raise ValueError(f"{shown} is not a segment size; write the broker's mappedFileSizeCommitLog, usually 1GiB")
    if value > LARGEST_SEGMENT_SIZE:
        raise ValueError(
            f"{shown} is too large; write at most {LARGEST_SEGMENT_SIZE} bytes, as RocketMQ's is a 32-bit int"
        )
    if value % SEGMENT_SIZE_UNIT:
        below = value - value % SEGMENT_SIZE_UNIT
        near = f"{below} or {below + SEGMENT_SIZE_UNIT}" if below else str(SEGMENT_SIZE_UNIT)
        raise ValueError(f"{value} is not a multiple of {SEGMENT_SIZE_UNIT}; the nearest sizes are {near}")
    return value


def _weight(value: float) -> float:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{value} is not a weight; write a number above 0 (1 is the usual share)")
    return value


_Size = Annotated[int, BeforeValidator(parse_size)]
_Path = Annotated[str, AfterValidator(normal_path)]
_Percent = Annotated[int, Field(ge=0)]


class _Thresholds(StrictTable):
    clean: _Percent | None = None
    force: _Percent | None = None
    full: _Percent | None = None
    resume: _Percent | None = None
    min_free: _Size | None = None


class _Disk(StrictTable):
    path: _Path
    readonly: bool = False
    weight: Annotated[float, AfterValidator(_weight)] | None = None
    thresholds: _Thresholds = _Thresholds()


def _some_disks(disks: tuple[_Disk, ...]) -> tuple[_Disk, ...]:
    if not disks:
        raise ValueError(f"no disk is given; add {EXAMPLES['disks']}")
    return disks


class _File(StrictTable):
    mountpoint: _Path
    segment_size: Annotated[_Size, AfterValidator(checked_segment_size)] = DEFAULT_SEGMENT_SIZE
    placement: Placement = "round-robin"
    trigger: Literal["all", "any"] = "all"
    on_missing: OnMissing = "refuse"
    passthrough: Passthrough = "auto"
    allow_other: bool | None = None
    refuse_reads_when_full: bool = False
    thresholds: _Thresholds = _Thresholds()
    retention: RetentionTable = RetentionTable()
    scrub: ScrubTable = ScrubTable()
    disks: Annotated[tuple[_Disk, ...], Field(strict=False), AfterValidator(_some_disks)]


_KEYS: Final[dict[str, tuple[str, ...]]] = {
    "": tuple(_File.model_fields),
    "thresholds": tuple(_Thresholds.model_fields),
    "retention": tuple(RetentionTable.model_fields),
    "scrub": tuple(ScrubTable.model_fields),
    "disks": tuple(_Disk.model_fields),
}

# --- from shape to meaning -------------------------------------------------------------------------------


def _effective(file: _File, name: str, given: frozenset[str], problems: list[Problem]) -> Config:
    common = _threshold_values(file.thresholds)
    thresholds = _thresholds("", common, {}, problems)
    disks = []
    for index, disk in enumerate(file.disks):
        key = f"disks[{index}]"
        own = _threshold_values(disk.thresholds)
        disks.append(
            DiskConfig(
                path=disk.path,
                readonly=disk.readonly,
                weight=1.0 if disk.weight is None else disk.weight,
                thresholds=_thresholds(f"{key}.", own, common, problems) if own else thresholds,
            )
        )
        if disk.weight is not None and file.placement != "weighted":
            remedy = 'remove it or set placement = "weighted"'
            problems.append(
                Problem(f"{key}.weight", f"has no effect with placement = {file.placement!r}; {remedy}")
            )
    return Config(
        name=name,
        mountpoint=file.mountpoint,
        disks=tuple(disks),
        segment_size=file.segment_size,
        placement=file.placement,
        on_missing=file.on_missing,
        passthrough=file.passthrough,
        allow_other=os.geteuid() == 0 if file.allow_other is None else file.allow_other,
        refuse_reads_when_full=file.refuse_reads_when_full,
        thresholds=thresholds,
        retention=retention_rules(file.retention, Trigger(file.trigger), problems),
        scrub=scrub_rules(file.scrub),
        given=given,
    )


def _threshold_values(table: _Thresholds) -> dict[str, int]:
    values: dict[str, int | None] = {key: getattr(table, key) for key in _KEYS["thresholds"]}
    return {key: value for key, value in values.items() if value is not None}


def _thresholds(
    prefix: str, own: Mapping[str, int], inherited: Mapping[str, int], problems: list[Problem]
) -> Thresholds:
    """Thresholds from `own`, else `inherited`, else the defaults. A contradiction is added to `problems`."""
    merged = {**inherited, **own}
    values = {("min_free_bytes" if key == "min_free" else key): value for key, value in merged.items()}
    try:
        return Thresholds(**values)
    except ThresholdError as error:
        origin = "" if error.key in own else " (from [thresholds])" if error.key in inherited else " (the default)"
        text = f"{error.value}{origin} {error.problem}; set it to {error.allowed}"
        problems.append(Problem(f"{prefix}thresholds.{error.key}", text))
        return Thresholds()


def _layout_problems(config: Config) -> list[Problem]:
    """Problems of the paths taken together."""
    problems = list(_overlaps(config.disks))
    for index, disk in enumerate(config.disks):
        if is_within(disk.path, config.mountpoint):
            remedy = "keep disks outside of the mountpoint, which would hide them"
            problems.append(
                Problem(
                    f"disks[{index}].path",
                    f"{disk.path} is inside the mountpoint {config.mountpoint}; {remedy}",
                )
            )
        elif is_within(config.mountpoint, disk.path):
            remedy = "choose another mountpoint, as a broker refuses a directory with another entry"
            problems.append(
                Problem("mountpoint", f"{config.mountpoint} is inside disks[{index}] {disk.path}; {remedy}")
            )
    return problems


def _overlaps(disks: tuple[DiskConfig, ...]) -> Iterator[Problem]:
    for index, disk in enumerate(disks):
        for earlier, other in enumerate(disks[:index]):
            if disk.path == other.path:
                yield Problem(f"disks[{index}].path", f"{disk.path} is disks[{earlier}] again; name each disk once")
            elif is_within(disk.path, other.path) or is_within(other.path, disk.path):
                yield Problem(
                    f"disks[{index}].path",
                    f"{disk.path} and disks[{earlier}] {other.path} overlap; use separate directories",
                )


def is_within(path: str, directory: str) -> bool:
    """Whether `path` is `directory` or below it; both normalised."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")
