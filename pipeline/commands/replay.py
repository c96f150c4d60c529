"""`commitlogfs-pipeline replay`: sends messages of the log into another cluster."""

import logging
import resource
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from commitlogfs.console import settings
from commitlogfs.console.errors import UsageError
from commitlogfs.console.exit_status import ExitCode
from commitlogfs.console.formatting import approximate_size, count_of
from commitlogfs.console.settings import wants_json
from commitlogfs.pipeline.commands import common

if TYPE_CHECKING:
    from commitlogfs.pipeline.replay.credentials import Credentials
    from commitlogfs.pipeline.replay.exported import Export
    from commitlogfs.pipeline.replay.position import PositionFile
    from commitlogfs.pipeline.replay.run import ReplayRequest, ReplayResult


def register(app: typer.Typer) -> None:
    app.command()(replay)


def replay(
    log: Annotated[
        str,
        typer.Argument(
            metavar="LOG",
            show_default=False,
            help=f"{common.LOG_HELP} An output of export is read, too.",
        ),
    ],
    name_server: Annotated[
        str,
        typer.Option("--to", metavar="HOST:PORT", help="Name server of the target cluster.", show_default=False),
    ],
    position: Annotated[
        Path,
        typer.Option(
            metavar="FILE", help="Where the position is kept: the same call continues there.", show_default=False
        ),
    ],
    client: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Jars of RocketMQ's client.", show_default="$ROCKETMQ_HOME/lib"),
    ] = None,
    credentials: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File with the target cluster's access_key and secret_key."),
    ] = None,
    map_topic: Annotated[
        list[str] | None,
        typer.Option(metavar="OLD=NEW", help="Send messages of topic OLD to topic NEW; repeat for more."),
    ] = None,
    topic: Annotated[str | None, typer.Option(metavar="NAME,NAME,...", help="Send only these topics.")] = None,
    topic_pattern: Annotated[
        str | None, typer.Option(metavar="REGEX", help="Send only topics whose whole name matches.")
    ] = None,
    starting_offsets: Annotated[
        str | None, typer.Option(metavar="OFFSET", help="Begin: earliest or a log offset.", show_default="earliest")
    ] = None,
    ending_offsets: Annotated[
        str | None, typer.Option(metavar="OFFSET", help="End: latest or a log offset, exclusive.")
    ] = None,
    starting_timestamp: Annotated[
        str | None, typer.Option(metavar="MS", help="Send only messages stored at this time or later.")
    ] = None,
    ending_timestamp: Annotated[
        str | None, typer.Option(metavar="MS", help="Send only messages stored before this time.")
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(min=0.001, metavar="N", help="Messages per second, at most.", show_default="no limit"),
    ] = None,
    mode: common.Mode = "FAILFAST",
    segment_size: common.SegmentSize = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only count what would be sent; the target is not asked.")
    ] = False,
    as_json: common.Json = False,
) -> None:
    """Send messages of the log, or of an export of it, to another cluster, in the order of each queue.

    RocketMQ's own client sends them. Keys, tags, properties and bodies stay the same. A message gets the properties
    ORIGIN_LOG_OFFSET, ORIGIN_BORN_TIMESTAMP and ORIGIN_STORE_TIMESTAMP besides. After a kill, the same call
    continues: at most 1,000 messages are sent twice. The topics must exist in the target cluster.

    EXIT STATUS: 0 ok; 1 damage was skipped, the log is damaged (FAILFAST), or the target does not take a message;
    2 bad options; 3 no log at LOG, or its server does not answer, no JVM, no client, or no name server; 4 refused:
    a topic is not in the target cluster, or has other queues than before, a part of the log is missing, an export
    lacks columns, the position's FILE belongs to another replay, or other users may read the credentials.
    """
    from commitlogfs.pipeline.replay.credentials import Credentials
    from commitlogfs.pipeline.replay.exported import Export
    from commitlogfs.pipeline.replay.position import PositionFile
    from commitlogfs.pipeline.replay.run import ReplayRequest, count, plan

    options = common.given(
        {
            "path": log,
            "topic": topic,
            "topicPattern": topic_pattern,
            "startingOffsets": starting_offsets,
            "endingOffsets": ending_offsets,
            "startingTimestamp": starting_timestamp,
            "endingTimestamp": ending_timestamp,
            "mode": mode,
            "segmentSize": segment_size,
        }
    )
    request = ReplayRequest.of(options, name_server, _pairs(map_topic or []), rate)
    keys = None if credentials is None else Credentials.read(credentials)
    export = Export.find(log)
    if export is None:
        common.list_log(log, segment_size)
    elif segment_size is not None:
        raise UsageError("--segment-size: has no effect on an export; leave it out")
    else:
        _raise_open_files_limit()
    file = PositionFile(position, request.identity())
    last = file.read()
    result = count(request, plan(request, last, export)) if dry_run else _run(request, file, export, client, keys)
    _show(result, dry_run=dry_run, as_json=as_json)
    if result.damages:
        raise typer.Exit(ExitCode.FINDINGS)


def _run(
    request: "ReplayRequest",
    file: "PositionFile",
    export: "Export | None",
    client: Path | None,
    credentials: "Credentials | None",
) -> "ReplayResult":
    from commitlogfs.pipeline.replay.client import Client, find_jars
    from commitlogfs.pipeline.replay.run import plan, replay
    from commitlogfs.pipeline.replay.source import bytes_from

    jars = find_jars(client)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if not settings.current().verbose:
        _hide_logs_of_libraries()
    with file:
        source = plan(request, file.position, export)
        with (
            Client(request.name_server, jars, credentials) as target,
            common.progress_bar("replay", bytes_from(source.ranges)) as on_progress,
        ):
            return replay(request, source, file, target, on_progress)


def _raise_open_files_limit() -> None:
    """To what the administrator allows: an export of many topics has many files."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _hide_logs_of_libraries() -> None:
    """py4j raises an error, and also logs it with its trace, some of it as the root logger."""
    handler = logging.StreamHandler()
    handler.addFilter(logging.Filter("commitlogfs"))
    logging.getLogger().addHandler(handler)


def _pairs(texts: list[str]) -> dict[str, str]:
    """The topics of OLD=NEW. Raises UsageError."""
    names: dict[str, str] = {}
    for text in texts:
        old, separator, new = text.partition("=")
        if not (old and separator and new):
            raise UsageError(f"--map-topic {text}: must be OLD=NEW")
        if names.setdefault(old, new) != new:
            raise UsageError(f"--map-topic: {old} is mapped twice; a topic has one target")
    return names


def _show(result: "ReplayResult", *, dry_run: bool, as_json: bool) -> None:
    if wants_json(as_json):
        common.show_json(result.as_json())
        return
    for name, messages in sorted(result.topics.items()):
        common.show(f"{name}: {count_of(messages, 'message')}")
    what = "to send" if dry_run else "sent"
    where = "" if result.next_offset is None else f"; the next log offset is {result.next_offset:,}"
    common.say(f"{count_of(result.messages, 'message')} {what}, {approximate_size(result.bytes)}{where}")
    if result.left_out:
        common.complain(f"left out: {count_of(result.left_out, 'message')} without a body, or of a consumer group")
    if result.repeated:
        common.complain(
            f"repeated: {count_of(result.repeated, 'send')} after an error: some messages may be there twice"
        )
    if result.weak:
        common.complain(
            f"late copies: a disk or a slave of the target did not confirm {count_of(result.weak, 'send')} in time"
        )
    common.complain_of(result.damages)
