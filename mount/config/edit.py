"""Changes that a command makes in a configuration file. Everything else in the file stays as it is.

The new text is parsed before anything is written, and must mean exactly the change. The file is replaced as a
whole, so a crash leaves either the former or the new one.
"""

import contextlib
import dataclasses
import fcntl
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import AoT, Array

from commitlogfs.console.errors import RefusedError
from commitlogfs.mount.config.errors import ConfigError, Problem
from commitlogfs.mount.config.model import Config, DiskConfig, parse_config
from commitlogfs.mount.config.whole_file import remove_stale, write_whole

_HEADER: Final = re.compile(r"\s*\[")
_DISKS_HEADER: Final = re.compile(r"\s*\[\[\s*disks\s*\]\]")
_DISK_TABLE: Final = re.compile(r"\s*\[\s*disks\s*\.")
"""The table of one disk's thresholds, which belongs to its entry."""


@dataclasses.dataclass(frozen=True, slots=True)
class Edit:
    """One change of a configuration file."""

    file: Path
    """With links resolved: a link stays a link."""
    former: bytes
    text: str
    config: Config
    """Meaning of the new text."""


def add_disk(file: str, path: str) -> Edit:
    """The file with one more disk, `path`, with the common settings. Writes nothing. Raises ConfigError."""
    real, former = _read(file)
    before = parse_config(former.decode(), Path(file).stem, file)
    try:
        text = former.decode()
        document = tomlkit.parse(text if text.endswith("\n") else f"{text}\n")
        _append(document["disks"], path)
        text = _with_line_ends_of(former, tomlkit.dumps(document))
    except (TOMLKitError, TypeError, ValueError) as error:
        raise _by_hand(file, path, str(error)) from None
    wanted = dataclasses.replace(before, disks=(*before.disks, DiskConfig(path, thresholds=before.thresholds)))
    return _checked(file, real, former, text, wanted, path)


def remove_disk(file: str, path: str) -> Edit:
    """The file without the disk `path`. Writes nothing. Raises ConfigError."""
    real, former = _read(file)
    before = parse_config(former.decode(), Path(file).stem, file)
    index = next((n for n, disk in enumerate(before.disks) if disk.path == path), None)
    if index is None:
        raise ConfigError(file, Problem("", f"names no disk {path}; write its path as the file does"))
    try:
        document = tomlkit.parse(former.decode())
        disks = document["disks"]
        if isinstance(disks, AoT):
            text = _without_table(former.decode(), index)
        elif isinstance(disks, Array):
            del disks[index]
            text = _with_line_ends_of(former, tomlkit.dumps(document))
        else:
            raise TypeError("`disks` is not an array")
    except (TOMLKitError, TypeError, ValueError) as error:
        raise _by_hand(file, path, str(error)) from None
    wanted = dataclasses.replace(before, disks=before.disks[:index] + before.disks[index + 1 :])
    return _checked(file, real, former, text, wanted, path)


@contextlib.contextmanager
def only_editor(file: str) -> Iterator[None]:
    """No other command of commitlogfs edits files of this directory meanwhile. Raises RefusedError, ConfigError."""
    directory = Path(file).resolve().parent
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(file, _problem("read", error)) from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise RefusedError(
            f"{directory}: another `commitlogfs disk` command is at work; wait for its end"
        ) from None
    finally:
        os.close(fd)


def write(edit: Edit) -> None:
    """Replace the file durably; mode and owner stay. The caller is the `only_editor`. Raises ConfigError, also if
    the file has changed meanwhile."""

    def require_unchanged() -> None:
        if edit.file.read_bytes() != edit.former:
            problem = Problem("", "another program has changed it meanwhile; repeat the command")
            raise ConfigError(str(edit.file), problem)

    try:
        remove_stale(edit.file)
        like = edit.file.stat()
        write_whole(edit.file, edit.text.encode(), replace=True, like=like, last_check=require_unchanged)
    except OSError as error:
        raise ConfigError(str(edit.file), _problem("written", error)) from error


def take_back(edit: Edit) -> None:
    """Undo `write`. Raises as `write` does."""
    write(dataclasses.replace(edit, former=edit.text.encode(), text=edit.former.decode()))


def _without_table(text: str, index: int) -> str:
    """The text without its [[disks]] table number `index`. Comments and blank lines before the next table stay,
    because they are about that one. (tomlkit counts them to the table before.) Raises ValueError if a header is not
    written as [[disks]]."""
    lines = text.splitlines(keepends=True)
    headers = [n for n, line in enumerate(lines) if _HEADER.match(line)]
    starts = [n for n in headers if _DISKS_HEADER.match(lines[n])]
    if index >= len(starts):
        raise ValueError("its header is written otherwise")
    start = starts[index]
    end = next((n for n in headers if n > start and not _DISK_TABLE.match(lines[n])), len(lines))
    while end > start + 1 and end < len(lines) and not lines[end - 1].split("#")[0].strip():
        end -= 1
    return "".join(lines[:start] + lines[end:])


def _with_line_ends_of(former: bytes, text: str) -> str:
    return re.sub(r"\r?\n", "\r\n", text) if b"\r\n" in former else text


def _checked(file: str, real: Path, former: bytes, text: str, wanted: Config, path: str) -> Edit:
    after = parse_config(text, Path(file).stem, file)
    if dataclasses.replace(after, given=wanted.given) != wanted:
        raise _by_hand(file, path, "the new text would also mean something else")
    if not os.access(real.parent, os.W_OK):
        problem = Problem("", "cannot be replaced by this user; run the command as its owner, or as root")
        raise ConfigError(str(real), problem)
    return Edit(real, former, text, dataclasses.replace(after, file=str(Path(file).absolute())))


def _append(disks: object, path: str) -> None:
    if isinstance(disks, AoT):
        table = tomlkit.table()
        table["path"] = path
        disks.append(table)
    elif isinstance(disks, Array):
        item = tomlkit.inline_table()
        item["path"] = path
        disks.append(item)
    else:
        raise TypeError("`disks` is not an array")


def _read(file: str) -> tuple[Path, bytes]:
    try:
        real = Path(file).resolve(strict=True)
        return real, real.read_bytes()
    except OSError as error:
        raise ConfigError(file, _problem("read", error)) from None


def _problem(what: str, error: OSError) -> Problem:
    return Problem("", f"cannot be {what} ({os.strerror(error.errno or 0)}); correct owner, mode or space")


def _by_hand(file: str, path: str, reason: str) -> ConfigError:
    text = f"the entry of {path} cannot be changed in this text ({reason}); write `disks` as [[disks]] tables"
    return ConfigError(file, Problem("", text))
