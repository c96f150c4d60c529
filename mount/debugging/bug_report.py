"""The list of the pieces of a bug report, and the archive that is made of them."""

import gzip
import io
import json
import os
import tarfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from commitlogfs.console.errors import RefusedError
from commitlogfs.console.version import VERSION
from commitlogfs.mount.daemon import daemonize
from commitlogfs.mount.debugging import machine
from commitlogfs.mount.debugging.children import end_of_file, output_of, output_of_verb
from commitlogfs.mount.debugging.daemon import Daemon
from commitlogfs.mount.debugging.pieces import Collected, NotCollectedError, Piece, collect_all
from commitlogfs.mount.debugging.redaction import as_json, redact
from commitlogfs.mount.debugging.subject import Subject, mounts_of
from commitlogfs.mount.linux import mountinfo

DIRECTORY: Final = "commitlogfs-debug"
"""Directory of all members of the archive."""
MANIFEST: Final = "manifest.json"
DAEMON_TIMEOUT_S: Final = 3.0
LOG_BYTES: Final = 2 << 20
LOG_LINES: Final = 10_000
_MODE: Final = 0o600
_FINDINGS: Final = (0, 1)
"""Exit statuses of `check` and `doctor` with a result."""
_NEVER_INSIDE: Final = "content of messages, topics of messages, credentials in URIs, environment variables"


class BugReport:
    """Collects the pieces of one archive. `subject` is None for the machine alone."""

    def __init__(self, subject: Subject | None, timeout_s: float) -> None:
        self._subject = subject
        self._timeout_s = timeout_s
        self._daemon = None if subject is None else Daemon(subject, min(timeout_s, DAEMON_TIMEOUT_S))

    def pieces(self) -> list[Piece]:
        """All pieces, in the order of their names."""
        found = [
            Piece("doctor.json", "the result of `commitlogfs doctor`", self._doctor),
            Piece("limits.json", "limits of processes and of the kernel", lambda: as_json(machine.limits())),
            Piece("mounts.txt", "lines of mountinfo: mounts of commitlogfs, and of the disks", self._mounts),
            Piece("devices.json", "block devices of the disks, and requests that wait in FUSE", self._devices),
            Piece("versions.json", "versions of commitlogfs, kernel, Python and libraries", self._versions),
        ]
        if self._subject is not None and self._daemon is not None:
            found += [
                Piece("status.json", "the status document of the daemon", self._daemon.status),
                *self._later_questions(self._daemon),
                Piece("configuration.toml", "the configuration file", self._configuration),
                Piece("check.json", "the result of `commitlogfs check`", self._check),
                Piece("log.txt", "the end of the log of keeper and daemon", self._log),
                Piece("processes.json", "daemon and keeper: state, limits, threads", self._processes),
                Piece("units.txt", "state of the systemd units", self._units),
            ]
        return sorted(found, key=lambda piece: piece.file)

    @staticmethod
    def _later_questions(daemon: Daemon) -> list[Piece]:
        """Asked once the status is there."""
        return [
            Piece("metrics.txt", "the metrics of the daemon", daemon.metrics),
            Piece("segments.json", "number of the segments of each disk, and gaps", daemon.segments),
            Piece("decisions.json", "the latest decisions of the daemon", daemon.decisions),
        ]

    def collect(self) -> list[Collected]:
        """Every piece within its deadline, without credentials and topics."""
        pieces = {piece.file: piece for piece in self.pieces()}
        first = [pieces.pop("status.json")] if "status.json" in pieces else []
        # The paths of the disks and the answers of the daemon depend on the status document.
        collected = collect_all(first, self._timeout_s) + collect_all(pieces.values(), self._timeout_s + 1.0)
        return sorted(map(_redacted, collected), key=lambda one: one.piece.file)

    # --- the pieces ------------------------------------------------------------------------------------

    def _named(self) -> Subject:
        assert self._subject is not None
        return self._subject

    def _mount_entries(self) -> list[mountinfo.MountEntry]:
        document = None if self._daemon is None else self._daemon.document
        disks = [] if document is None else [disk["path"] for disk in document["disks"]]
        configured = [] if self._subject is None else self._subject.disks()
        return mounts_of(self._subject, list(dict.fromkeys([*configured, *disks])))

    def _mounts(self) -> bytes:
        return machine.mount_lines(self._mount_entries())

    def _devices(self) -> bytes:
        return as_json(machine.block_devices(self._mount_entries()))

    def _versions(self) -> bytes:
        pids = {} if self._subject is None else self._subject.processes()
        return as_json(machine.versions(pids.get("daemon")))

    def _processes(self) -> bytes:
        return as_json(machine.processes(self._named().processes()))

    def _configuration(self) -> bytes:
        subject = self._named()
        if subject.file is None:
            raise NotCollectedError(subject.no_file)
        return end_of_file(str(subject.file), LOG_BYTES, self._timeout_s)

    def _check(self) -> bytes:
        subject = self._named()
        if subject.file is None:
            raise NotCollectedError(subject.no_file)
        return self._result_of("check", "--json", str(subject.file))

    def _doctor(self) -> bytes:
        file = None if self._subject is None else self._subject.file
        return self._result_of("doctor", "--json", *([] if file is None else [str(file)]))

    def _result_of(self, *arguments: str) -> bytes:
        return as_json(json.loads(output_of_verb(*arguments, timeout_s=self._timeout_s, good=_FINDINGS)))

    def _units(self) -> bytes:
        return machine.units(
            [f"commitlogfs@{self._named().name}.service", "commitlogfs-exporter.service"], self._timeout_s
        )

    def _log(self) -> bytes:
        """From the log file of a background daemon, else from the file that is the daemon's standard error, else
        from the journal."""
        subject, problems = self._named(), []
        sources: list[Callable[[], bytes]] = [
            lambda: self._log_file(daemonize.log_file(subject.name, make=False)),
            self._standard_error,
            lambda: self._journal(subject.name),
        ]
        for source in sources:
            try:
                text = source()
            except (NotCollectedError, RefusedError, OSError) as error:
                problems.append(str(error))
            else:
                if text:
                    return text
        raise NotCollectedError("; ".join(problems) or "the log is empty")

    def _log_file(self, path: Path) -> bytes:
        return end_of_file(str(path), LOG_BYTES, self._timeout_s)

    def _standard_error(self) -> bytes:
        for pid in self._named().processes().values():
            path = os.readlink(f"/proc/{pid}/fd/2")  # noqa: PTH115 - a pipe is no path
            if path.startswith("/") and not path.startswith("/dev/"):
                return self._log_file(Path(path))
        return b""

    def _journal(self, name: str) -> bytes:
        machine.require_systemd()
        command = ("journalctl", f"--unit=commitlogfs@{name}.service", f"--lines={LOG_LINES}")
        return output_of((*command, "--output=short-iso-precise", "--no-hostname", "--quiet"), self._timeout_s)


def _redacted(one: Collected) -> Collected:
    """JSON is redacted string by string when it is made."""
    if one.content is None or one.piece.file.endswith(".json"):
        return one
    return replace(one, content=redact(one.content.decode(errors="backslashreplace")).encode())


def manifest(collected: Sequence[Collected], name: str | None, made_at: float) -> dict[str, Any]:
    """The pieces inside, and those that could not be collected, with the reason. Stable schema."""
    return {
        "made_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(made_at)),
        "commitlogfs": VERSION,
        "mount": name,
        "user": os.geteuid(),
        "never_inside": _NEVER_INSIDE,
        "inside": [
            {
                "file": one.piece.file,
                "holds": one.piece.holds,
                "bytes": len(one.content),
                "cut_off": one.is_cut,
                "seconds": one.seconds,
            }
            for one in collected
            if one.content is not None
        ],
        "not_collected": [
            {"file": one.piece.file, "holds": one.piece.holds, "reason": one.problem}
            for one in collected
            if one.content is None
        ],
    }


def pack(collected: Sequence[Collected], contents: dict[str, Any], made_at: float) -> bytes:
    """The archive: a tar.gz whose members are ordered by name."""
    members = {one.piece.file: one.content for one in collected if one.content is not None}
    members[MANIFEST] = as_json(contents)
    packed = io.BytesIO()
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=made_at) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for file, content in sorted(members.items()):
            member = tarfile.TarInfo(f"{DIRECTORY}/{file}")
            member.size, member.mode, member.mtime = len(content), _MODE, int(made_at)
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def require_new(output: Path) -> None:
    """Raises RefusedError if the archive cannot be made there."""
    entry = mountinfo.containing_mount(mountinfo.resolve_path(output.parent))
    if entry is not None and mountinfo.is_commitlogfs(entry):
        raise RefusedError(f"{output}: is inside a commitlogfs; give --output FILE on another filesystem")
    if os.path.lexists(output):
        raise RefusedError(f"{output}: exists already; remove it, or give another --output FILE")


def write_new(output: Path, content: bytes) -> None:
    """Write the archive for this user only. Raises RefusedError if the file exists, or cannot be written."""
    try:
        fd = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)
    except FileExistsError:
        raise RefusedError(f"{output}: exists already; remove it, or give another --output FILE") from None
    except OSError as error:
        raise RefusedError(f"{output}: {error.strerror}; give another --output FILE") from error
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        output.unlink(missing_ok=True)
        raise RefusedError(f"{output}: {error.strerror}; give another --output FILE") from error
