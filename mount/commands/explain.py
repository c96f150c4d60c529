"""`commitlogfs explain`: say why a segment, a disk or the next create is as it is."""

import json
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from commitlogfs.console import settings
from commitlogfs.console.errors import UnreachableError, UsageError
from commitlogfs.console.output import Output
from commitlogfs.mount.commands import options
from commitlogfs.mount.journal.entries import Kind
from commitlogfs.mount.journal.file import read_journal
from commitlogfs.mount.journal.selection import Selection, answer, select
from commitlogfs.mount.location import control_socket, runtime_directory
from commitlogfs.mount.location.which_mount import Target, find_target
from commitlogfs.mount.status.locate import parse_target
from commitlogfs.mount.views import explain_text
from commitlogfs.mount.views.explain_text import Explanation, Known
from commitlogfs.store.segment import format_segment_name

CREATE = "create"
_LISTED = 100


def register(app: typer.Typer) -> None:
    app.command()(explain)


@dataclass(frozen=True, slots=True)
class _Source:
    """The mount as its daemon or, if that is dead, its journal shows it."""

    target: Target
    status: dict[str, Any] | None
    journal: bytes
    """Content of the journal's file; only read without a daemon."""
    trouble: str = ""
    """Why no daemon answers."""

    def known(self, selection: Selection, limit: int = _LISTED) -> Known:
        if self.status is None:
            found = answer(self.journal, selection, limit)
        else:
            kind = None if selection.kind is None else selection.kind.value
            found = self.ask("decisions", segment=selection.segment, disk=selection.disk, kind=kind, limit=limit)
        return Known(self.status, found["decisions"], found["begins_at"])

    def ask(self, verb: str, **arguments: object) -> dict[str, Any]:
        return control_socket.ask(self.target.socket, verb, control_socket.PEER_TIMEOUT_S, **arguments)


def explain(
    subject: Annotated[
        str | None,
        typer.Argument(
            metavar="SEGMENT|OFFSET|DISK|create",
            help="A segment's 20-digit name, a log offset, the path of a disk, or `create` for the next one. "
            "Default: the latest decisions.",
            show_default=False,
        ),
    ] = None,
    which: options.Mount = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="One JSON object; `recorded` is false if the reason is derived or not known."),
    ] = False,
) -> None:
    """Explain why a segment is on its disk or gone, why a disk gets no new segments, or why a create fails.

    The reasons come from the journal of decisions that the daemon keeps. If the daemon is dead, the journal alone
    is read.

    EXIT STATUS: 0 explained; 2 not a segment, offset or disk of this mount; 3 neither a daemon nor a journal;
    4 the daemon is of a former version.
    """
    if subject is not None and which is None and not _is_subject(subject):
        subject, which = None, subject  # only a mount is given
    offset = parse_target(subject) if subject is not None and subject.isdigit() else None
    source = _open(find_target(which))
    if offset is not None:
        found, known = _explain_offset(source, offset)
    elif subject == CREATE:
        known = source.known(Selection(kind=Kind.REFUSED), 1)
        found = explain_text.explain_create(known)
    elif subject is not None:
        found, known = _explain_disk(source, subject)
    else:
        known = source.known(Selection())
        found = explain_text.explain_mount(known)
    _show(source, subject, found, known, as_json=settings.wants_json(as_json))


def _is_subject(text: str) -> bool:
    return text == CREATE or text.isdigit() or ("/" in text and not text.endswith(".toml"))


def _open(target: Target) -> _Source:
    """Raises UnreachableError if there is neither a daemon nor a journal, RefusedError."""
    try:
        return _Source(target, target.status(), b"")
    except UnreachableError as error:
        try:
            content = read_journal(runtime_directory.journal_path(target.name))
        except OSError:
            content = None
        if content is None:
            raise
        return _Source(target, None, content, str(error))


def _explain_offset(source: _Source, offset: int) -> tuple[Explanation, Known]:
    size = _segment_size(source)
    base = offset - offset % size
    known = source.known(Selection(segment=format_segment_name(base).decode()))
    if source.status is None:
        return explain_text.explain_segment(known, offset, size, None, None), known
    location = source.ask("locate", target=str(offset))
    before = source.ask("locate", target=str(base - size)) if base >= size else None
    return explain_text.explain_segment(known, offset, size, location, before), known


def _segment_size(source: _Source) -> int:
    if source.status is not None:
        size: int = source.status["segments"]["size"]
        return size
    for kind in (Kind.TAKEOVER, Kind.MOUNTED):
        for entry in select(source.journal, Selection(kind=kind), 1):
            size = entry["facts"]["segment_size"]
            return size
    return 1  # the journal has forgotten it: only the name of a segment is found


def _explain_disk(source: _Source, path: str) -> tuple[Explanation, Known]:
    """Raises UsageError for a path that is not a disk of the pool."""
    path = path.rstrip("/") or "/"
    known = source.known(Selection(disk=path))
    disks = {} if source.status is None else {disk["path"]: disk for disk in source.status["disks"]}
    if path in disks:
        of_disk = source.known(Selection(disk=path, kind=Kind.DISK))
        return explain_text.explain_disk(of_disk, disks[path]), of_disk
    found = explain_text.explain_absent_disk(known, path)
    if found is None:
        advice = f"its disks are {', '.join(disks)}" if disks else "its daemon does not answer"
        raise UsageError(f"{path}: not a disk of {source.target.name}; {advice}")
    return found, known


def _show(source: _Source, subject: str | None, found: Explanation, known: Known, *, as_json: bool) -> None:
    if as_json:
        document = {
            "name": source.target.name,
            "subject": subject,
            "daemon": source.status is not None,
            "recorded": found.is_recorded,
            "lines": found.lines,
            "begins_at": known.begins_at,
            "decisions": known.decisions,
        }
        typer.echo(json.dumps(document, indent=2))
        return
    output = Output()
    if source.status is None:
        output.paragraph(f"From the journal only: {source.trouble}.", "bold yellow")
    for line in found.lines:
        output.paragraph(line, indent=2)
