"""`commitlogfs-pipeline audit`: compares a log with its consume queues and index."""

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
"""Maximum number of findings printed; --json and --html have more."""


def register(app: typer.Typer) -> None:
    app.command()(audit)


def audit(
    log: common.StoreLog = None,
    store_root: Annotated[
        Path | None,
        typer.Option(
            "--store-root", metavar="STORE", help="Compare the consume queues and the index of this store, too."
        ),
    ] = None,
    broker_conf: common.BrokerConf = None,
    broker_version: common.BrokerVersion = None,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Also write a page: findings with what to do, and charts."),
    ] = None,
    segment_size: common.SegmentSize = None,
    split_size: common.SplitSize = common.DEFAULT_SPLIT,
    master: common.Master = None,
    as_json: common.Json = False,
) -> None:
    """Compare every record with its CRCs, its consume queue and the index, in both directions.

    The audit changes nothing; a broker may be running.

    EXIT STATUS: 0 no findings; 1 findings; 2 bad options; 3 no log at LOG, or Spark does not start; 4 refused.
    """
    from commitlogfs.pipeline.jobs.audit import audit as run

    split_bytes = common.parse_size("--split-size", split_size)
    settings = broker_settings(broker_conf, store_root, broker_version, segment_size)
    place = log or settings.commitlog
    if place is None:
        raise UsageError("audit: no log given; give LOG, --store-root or --broker-conf")
    if html is not None:
        _require_writable(html)
    for warning in settings.warnings:
        common.complain(f"warning: {warning}")
    log_bytes = _size(place, segment_size)
    with common.spark_for_jobs("audit", master) as spark, common.progress_bar("audit", log_bytes) as on_progress:
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
    """Checks that the page can be written, before a long run. Keeps an existing page."""
    if not page.absolute().parent.is_dir():
        raise UsageError(f"--html: {page.absolute().parent}: no such directory; create it, or name another file")
    is_new = not page.exists()
    try:
        page.open("a").close()
    except OSError as error:
        raise RefusedError(f"--html: {page}: cannot be written ({error.strerror})") from error
    if is_new:
        page.unlink()


def _size(place: str, segment_size: str | None) -> int:
    from commitlogfs.pipeline.log.errors import DuplicateSegmentError

    try:
        return sum(segment.size for segment in common.list_log(place, segment_size).segments)
    except DuplicateSegmentError:
        return 0  # the audit reports duplicate segments as findings


def _show(report: "AuditReport") -> None:
    from commitlogfs.pipeline.jobs.findings import MEANINGS, REMEDIES

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
        common.show(f"{count:,} x {kind}: {MEANINGS[kind]}. To do: {REMEDIES[kind]}")
    if report.is_whole:
        common.say("no findings")
