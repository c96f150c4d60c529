"""Answers of the daemon: status, metrics, segments, decisions. A daemon that hangs costs one deadline."""

import json
import os
from collections import Counter
from typing import Any, Final

from commitlogfs.console.errors import UserError
from commitlogfs.mount.debugging.children import end_of_file
from commitlogfs.mount.debugging.pieces import MAX_BYTES, NotCollectedError
from commitlogfs.mount.debugging.redaction import as_json
from commitlogfs.mount.debugging.subject import Subject
from commitlogfs.mount.location import control_socket, runtime_directory
from commitlogfs.mount.location.status_file import HIDDEN
from commitlogfs.store.gaps import gaps_between

_GAPS_LISTED: Final = 100
_DECISIONS: Final = 1000


class Daemon:
    """The daemon of one mount. Nothing is asked again once a question had no answer."""

    def __init__(self, subject: Subject, timeout_s: float) -> None:
        self._subject = subject
        self._timeout_s = timeout_s
        self.document: dict[str, Any] | None = None
        """The status document, once it is there."""

    def status(self) -> bytes:
        """From the daemon, else from the file in the mount, which other users may read, too."""
        try:
            self.document = self._ask("status")
        except NotCollectedError:
            if self._subject.others_mountpoint is None:
                raise
            self.document = json.loads(self._file("status.json"))
        return as_json(self.document)

    def metrics(self) -> bytes:
        self._require_answers()
        try:
            return str(self._ask("metrics")["text"]).encode()
        except NotCollectedError:
            if self._subject.others_mountpoint is None:
                raise
            return self._file("metrics")

    def segments(self) -> bytes:
        self._require_answers()
        return as_json(summary_of_segments(self._ask("segments")))

    def decisions(self) -> bytes:
        self._require_answers()
        return as_json(self._ask("decisions", limit=_DECISIONS))

    def _require_answers(self) -> None:
        if self.document is None:
            raise NotCollectedError("the daemon did not report its status, so it was not asked again")

    def _ask(self, verb: str, **arguments: object) -> dict[str, Any]:
        """By the control socket; that of another user answers members of a group at its status socket."""
        name = self._subject.name
        path = runtime_directory.socket_path(name)
        if self._subject.others_mountpoint is not None:
            path = runtime_directory.status_socket_path(name, runtime_directory.OF_ROOT)
            if not os.path.exists(path):  # noqa: PTH110 - false also where this user may not look
                raise NotCollectedError("the daemon answers only root, its own user, and the group commitlogfs")
        try:
            return control_socket.ask(path, verb, self._timeout_s, **arguments)
        except UserError as error:
            raise NotCollectedError(str(error)) from error

    def _file(self, name: str) -> bytes:
        """A file in the mount, for a user whom the daemon does not answer."""
        return end_of_file(f"{self._subject.others_mountpoint}/{HIDDEN}/{name}", MAX_BYTES, self._timeout_s)


def summary_of_segments(answer: dict[str, Any]) -> dict[str, Any]:
    """Number of the segments, on each disk too, and the gaps between them, of the answer to `segments`."""
    offsets = [offset for offset, _ in answer["segments"]]
    counts = Counter(disk for _, disk in answer["segments"])
    gaps = gaps_between(offsets, answer["segment_size"])
    return {
        "segment_size": answer["segment_size"],
        "count": len(offsets),
        "first_offset": offsets[0] if offsets else None,
        "last_offset": offsets[-1] if offsets else None,
        "disks": [{**disk, "segments": counts[disk["number"]]} for disk in answer["disks"]],
        "missing_disks": answer["missing_disks"],
        "gap_count": len(gaps),
        "gaps": gaps[:_GAPS_LISTED],
        "accepted_gap_count": len(answer["accepted_gaps"]),
    }
