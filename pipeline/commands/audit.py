"""`commitlogfs-pipeline audit`: is a store whole?"""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from commitlogfs.console.errors import RefusedError, UsageError
from commitlogfs.console.exit_status import ExitCode
from commitlogfs.console.formatting import count_of
from commitlogfs.console.settings import wants_json
from commitlogfs.pipeline.commands import common
from commitlogfs.pipeline.commands.rebuild import broker_settings

if TYPE_CHECKING:
    from commitlogfs.pipeline.jobs.audit import AuditReport

_SHOWN = 20
"""Findings, beyond which only their number is told; --json and --html have more."""


def register(app: typer.Typer) -> None:
    app.command()(audit)


def audit(
    log: Annotated[
        str | None,
        typer.Argument(metavar="LOG", help="As for the other verbs.", show_default="STORE/commitlog"),
    ] = None,
    store_root: Annotated[
        Path | None,
        typer.Option("--store-root", metavar="STORE", help="Compare its consume queues and its index, too."),
    ] = None,
    broker_conf: Annotated[
        Path | None, typer.Option("--broker-conf", metavar="FILE", help="Sizes, delays and what else it says.")
    ] = None,
    broker_version: Annotated[
        str | None,
        typer.Option(
            metavar="X.Y.Z",
            help="The RocketMQ whose queues and index they are; before 5.4 they differ.",
            show_default="5.5.0, or 4.9 where topics.json is of RocketMQ 4",
        ),
    ] = None,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Also as a page with plots.")] = None,
    segment_size: common.SegmentSize = None,
    split_size: common.SplitSize = common.DEFAULT_SPLIT,
    master: common.Master = None,
    as_json: common.Json = False,
) -> None:
    """Read every record and compare it with its CRCs, with its consume queue and with the index, both ways.

    Changes nothing; a broker may be running.

    EXIT STATUS: 0 the store is whole; 1 findings; 2 bad options; 3 no log there, or no Spark; 4 refused.
    """
    from commitlogfs.pipeline.jobs.audit import audit as run

    split_bytes = common.parse_size("--split-size", split_size)
    settings = broker_settings(broker_conf, store_root, broker_version, segment_size)
    place = log or settings.commitlog
    if place is None:
        raise UsageError("audit: which log? Give LOG, --store-root or --broker-conf")
    if html is not None:
        _require_writable(html)
    for warning in settings.warnings:
        common.complain(f"warning: {warning}")
    log_bytes = _size(place, segment_size)
    with common.spark_session("audit", master) as spark, common.progress_bar("audit", log_bytes) as on_progress:
        job = partial(
            run,
            store_root=store_root,
            settings=settings,
            known_topics=settings.topics,
            split_size=split_bytes,
            on_progress=on_progress,
        )
        report = common.run_job(spark, partial(job, spark, place))
    if wants_json(as_json):
        common.show_json(report.to_json())
    else:
        _show(report)
    if html is not None:
        from commitlogfs.pipeline.jobs.audit_page import write_page
        from commitlogfs.pipeline.log.errors import output_errors

        with output_errors(html):
            write_page(report, html)
    if not report.is_whole:
        raise typer.Exit(ExitCode.FINDINGS)


def _require_writable(page: Path) -> None:
    """Now, rather than after a long run. Leaves what is there."""
    if not page.absolute().parent.is_dir():
        raise UsageError(f"--html: {page.absolute().parent}: no such folder")
    is_new = not page.exists()
    try:
        page.open("a").close()
    except OSError as error:
        raise RefusedError(f"--html: {page}: {error.strerror}") from error
    if is_new:
        page.unlink()


def _size(place: str, segment_size: str | None) -> int:
    from commitlogfs.pipeline.log.errors import DuplicateSegmentError

    try:
        return sum(segment.size for segment in common.look_at(place, segment_size).segments)
    except DuplicateSegmentError:
        return 0  # a finding


def _show(report: "AuditReport") -> None:
    from commitlogfs.pipeline.jobs.findings import MEANINGS

    common.say(
        f"{count_of(report.found.records, 'message')} in {count_of(report.segments, 'segment')}, log offsets "
        f"{report.begin_offset:,} to {report.end_offset:,}; compared: {', '.join(report.compared)}"
    )
    for note in report.notes:
        common.say(f"note: {note}")
    shown = report.findings.all_shown()
    for finding in shown[:_SHOWN]:
        place = finding.where if finding.offset < 0 else f"{finding.where}, log offset {finding.offset}"
        common.show(f"{finding.kind}: {place}: {finding.detail}")
    if len(shown) > _SHOWN:
        common.show(f"... (--json has the first of each kind, {len(shown)} in all)")
    for kind, count in sorted(report.findings.counts.items()):
        common.show(f"{count:,} x {kind}: {MEANINGS[kind]}")
    if report.is_whole:
        common.say("whole: nothing found")
