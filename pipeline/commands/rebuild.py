"""`commitlogfs-pipeline rebuild`: rebuilds consume queues and index from the log."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from commitlogfs.console.errors import RefusedError, UsageError
from commitlogfs.console.exit_status import ExitCode
from commitlogfs.console.formatting import approximate_size, count_of
from commitlogfs.console.settings import wants_json
from commitlogfs.pipeline.commands import common

if TYPE_CHECKING:
    from commitlogfs.pipeline.broker.settings import BrokerSettings
    from commitlogfs.pipeline.jobs.apply import ApplyResult
    from commitlogfs.pipeline.jobs.rebuild import RebuildResult
    from commitlogfs.pipeline.log.segments import LogListing


def register(app: typer.Typer) -> None:
    app.command()(rebuild)


def rebuild(
    log: common.StoreLog = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="DIR",
            help="New directory for the result, on a disk that all workers share.",
            show_default="with --apply: STORE/rebuilt",
        ),
    ] = None,
    consumequeue: Annotated[bool, typer.Option("--consumequeue", help="Rebuild only the consume queues.")] = False,
    index: Annotated[bool, typer.Option("--index", help="Rebuild only the index.")] = False,
    store_root: Annotated[
        Path | None,
        typer.Option(
            "--store-root", metavar="STORE", help="The broker's storePathRootDir, with its topics and its log."
        ),
    ] = None,
    broker_conf: common.BrokerConf = None,
    broker_version: common.BrokerVersion = None,
    live_topics_only: Annotated[
        bool,
        typer.Option("--live-topics-only", help="Make no queues for topics missing in STORE/config/topics.json."),
    ] = False,
    topic_start: Annotated[
        list[str] | None,
        typer.Option(
            "--topic-start",
            metavar="TOPIC=OFFSET",
            help="Ignore messages of TOPIC before this log offset: they belong to a deleted topic. Repeatable.",
        ),
    ] = None,
    mode: common.Mode = "FAILFAST",
    segment_size: common.SegmentSize = None,
    split_size: common.SplitSize = common.DEFAULT_SPLIT,
    master: common.Master = None,
    apply: Annotated[
        bool,
        typer.Option("--apply", help="Install the result in STORE, whose broker must be stopped. Keeps old files."),
    ] = False,
    accept_misplaced: Annotated[
        bool,
        typer.Option("--accept-misplaced", help="Install queues even with entries in wrong positions."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be read and written.")] = False,
    as_json: common.Json = False,
) -> None:
    """Rebuild the consume queues and the index that the broker would make of this log, in a new directory.

    Without --consumequeue and --index, both are made, unless the broker has no index files. Only --apply changes
    the broker's own files; it also installs the result of an earlier call in DIR.

    EXIT STATUS: 0 ok; 1 damage was skipped, or the log is damaged (FAILFAST); 2 bad options; 3 no log at LOG, or
    Spark does not start; 4 refused: the output exists, the log has a gap, these queues cannot be rebuilt or have
    entries in wrong positions, a broker is running.
    """
    from commitlogfs.pipeline.jobs.rebuild import RebuildRefusedError
    from commitlogfs.pipeline.jobs.rebuild import rebuild as run

    if apply and store_root is None:
        raise UsageError("rebuild: --apply needs the store to install into; give --store-root")
    damage_mode, split_bytes = common.parse_mode(mode), common.parse_size("--split-size", split_size)
    settings = broker_settings(
        broker_conf,
        store_root,
        broker_version,
        segment_size,
        live_topics_only=live_topics_only,
        topic_starts=_topic_starts(topic_start or ()),
    )
    _check_topic_starts(settings)
    place = _log_of(log, settings)
    installation = _Installation(store_root, settings, log, accept_misplaced) if apply and store_root else None
    output = _output_for(output, installation)
    if installation is not None:
        _refuse_running_broker(installation.store_root)
        if _is_made(output, installation.store_root):
            _install_made(output, installation, dry_run=dry_run, as_json=as_json)
            return
    listing = common.list_log(place, segment_size, damage_mode)
    if output.exists():
        raise RebuildRefusedError(f"{output}: exists; remove it, or name another output")
    plan = _plan_of(
        place, output, listing, settings, queues=consumequeue or not index, keys=index or not consumequeue
    )
    for warning in plan.warnings:
        common.complain(f"warning: {warning}")
    if dry_run:
        _show_plan(plan, as_json=as_json)
        return
    with (
        common.spark_for_jobs("rebuild", master) as spark,
        common.progress_bar("rebuild", plan.log_bytes) as on_progress,
    ):
        job = partial(
            run,
            consumequeue=plan.queues,
            index=plan.keys,
            settings=settings,
            mode=damage_mode,
            split_size=split_bytes,
            on_progress=on_progress,
        )
        result = common.run_job(spark, partial(job, spark, place, output))
    _finish(result, plan, installation, as_json=as_json)
    if result.damages or result.not_served:
        raise typer.Exit(ExitCode.FINDINGS)


@dataclass(frozen=True)
class _Installation:
    """The store to install into, and the conditions."""

    store_root: Path
    settings: "BrokerSettings"
    given_log: str | None
    accept_misplaced: bool

    def apply(self, output: Path) -> "ApplyResult":
        """Install the rebuilt `output`. Raises the errors of apply_rebuilt."""
        from commitlogfs.pipeline.jobs.apply import apply_rebuilt

        result = apply_rebuilt(
            output,
            self.store_root,
            own_log=self.settings.commitlog,
            given_log=self.given_log,
            accept_misplaced=self.accept_misplaced,
        )
        for warning in result.warnings:
            common.complain(f"warning: {warning}")
        return result


@dataclass(frozen=True)
class _Plan:
    """Input and output of the rebuild."""

    log: str
    output: Path
    listing: "LogListing"
    queues: bool
    keys: bool
    warnings: Sequence[str]

    @property
    def log_bytes(self) -> int:
        return sum(segment.size for segment in self.listing.segments)

    def as_json(self) -> dict[str, Any]:
        return {
            "log": self.log,
            "output": str(self.output),
            "segments": len(self.listing.segments),
            "bytes": self.log_bytes,
            "consumequeue": self.queues,
            "index": self.keys,
            "warnings": list(self.warnings),
        }


def _plan_of(
    log: str, output: Path, listing: "LogListing", settings: "BrokerSettings", *, queues: bool, keys: bool
) -> _Plan:
    """The plan for the requested parts. Raises RebuildRefusedError if it would be the index alone of a broker that
    has none."""
    from commitlogfs.pipeline.jobs.rebuild import RebuildRefusedError

    warnings = settings.warnings
    if keys and settings.index_refused:
        if not queues:
            raise RebuildRefusedError(settings.index_refused)
        keys = False
        warnings = (*warnings, f"no index is made: {settings.index_refused}")
    return _Plan(log, output, listing, queues, keys, warnings)


def _show_plan(plan: _Plan, *, as_json: bool) -> None:
    if wants_json(as_json):
        common.show_json(plan.as_json())
        return
    parts = " and ".join(name for name, made in (("consume queues", plan.queues), ("index", plan.keys)) if made)
    count = count_of(len(plan.listing.segments), "segment")
    size = approximate_size(plan.log_bytes)
    common.say(f"Would read {count}, {size}, from {plan.log}, and write {parts} to {plan.output}.")


def _log_of(log: str | None, settings: "BrokerSettings") -> str:
    place = log or settings.commitlog
    if place is None:
        raise UsageError("rebuild: no log given; give LOG, --store-root or --broker-conf")
    return place


def _output_for(output: Path | None, installation: _Installation | None) -> Path:
    if output is not None:
        return output
    if installation is None:
        raise UsageError("rebuild: no output given; give --output DIR")
    return installation.store_root / "rebuilt"


def _check_topic_starts(settings: "BrokerSettings") -> None:
    for topic in settings.rules.topic_starts:
        if settings.topics is not None and topic not in settings.topics:
            raise UsageError(f"--topic-start: topic {topic} is not in the store's config/topics.json; correct it")


def _refuse_running_broker(store_root: Path) -> None:
    """Checks before a long run; `apply_rebuilt` checks again and holds the lock."""
    from commitlogfs.pipeline.broker.lock import broker_pid

    pid = broker_pid(store_root)
    if pid is not None:
        raise RefusedError(f"{store_root}: a broker is running on this store (process {pid}); stop it first")


def _is_made(output: Path, store_root: Path) -> bool:
    """Whether an earlier call has made the output, or has installed a part of it."""
    from commitlogfs.pipeline.jobs.apply import JOURNAL, MANIFEST

    return (output / MANIFEST).exists() or (store_root / JOURNAL).exists()


def _finish(result: "RebuildResult", plan: _Plan, installation: _Installation | None, *, as_json: bool) -> None:
    """Show the result, and install it if --apply is given and nothing was skipped."""
    if not wants_json(as_json):
        _show(result)
    warnings = list(plan.warnings)
    installed: ApplyResult | None = None
    try:
        if installation is not None and result.damages:
            left = f"{plan.output}: not installed, because damage was skipped; check it, then give --apply again"
            warnings.append(left)
            common.complain(left)
        elif installation is not None:
            installed = installation.apply(plan.output)
    finally:
        _show_apply(_as_json(result) | {"warnings": warnings}, installed, as_json=as_json)


def _install_made(output: Path, installation: _Installation, *, dry_run: bool, as_json: bool) -> None:
    """Install the output of an earlier call."""
    if not dry_run:
        result = installation.apply(output)
        _show_apply({"output": str(output), "warnings": []}, result, as_json=as_json)
    elif wants_json(as_json):
        common.show_json({"output": str(output), "would_install_in": str(installation.store_root)})
    else:
        common.say(f"Would install {output} in {installation.store_root}.")


def _show_apply(document: dict[str, Any], result: "ApplyResult | None", *, as_json: bool) -> None:
    """Prints the result; as JSON, in one document with the rest of `document`."""
    installed, kept = ([], []) if result is None else (result.installed, result.kept)
    if wants_json(as_json):
        warnings = [*document["warnings"], *(() if result is None else result.warnings)]
        paths = {"installed": [str(path) for path in installed], "kept": [str(path) for path in kept]}
        common.show_json(document | paths | {"warnings": warnings})
        return
    for path in installed:
        common.say(f"installed: {path}")
    for path in kept:
        common.say(f"kept: {path}")


def broker_settings(
    broker_conf: Path | None,
    store_root: Path | None,
    broker_version: str | None,
    segment_size: str | None,
    *,
    live_topics_only: bool = False,
    topic_starts: Mapping[str, int] | None = None,
) -> "BrokerSettings":
    """The settings of the broker. Without --segment-size and --broker-conf, the size of the files counts."""
    from dataclasses import replace

    from commitlogfs.pipeline.broker.settings import load_broker_settings

    if store_root is not None and not store_root.is_dir():
        raise UsageError(f"--store-root: {store_root}: no such directory; name the broker's storePathRootDir")
    if live_topics_only and store_root is None and broker_conf is None:
        raise UsageError("--live-topics-only: the topics are unknown; give --store-root or --broker-conf")
    settings = load_broker_settings(
        broker_conf,
        store_root,
        broker_version=broker_version,
        live_topics_only=live_topics_only,
        topic_starts=topic_starts,
    )
    if segment_size is not None:
        return replace(settings, segment_size=common.parse_size("--segment-size", segment_size))
    return settings if broker_conf is not None else replace(settings, segment_size=None)


def _topic_starts(texts: Iterable[str]) -> dict[str, int]:
    starts = {}
    for text in texts:
        topic, _, offset = text.rpartition("=")
        if not topic or not re.fullmatch("[0-9]{1,18}", offset):
            raise UsageError(f"--topic-start: {text!r}: must be TOPIC=OFFSET, with a log offset")
        starts[topic] = int(offset)
    return starts


def _as_json(result: "RebuildResult") -> dict[str, Any]:
    document = asdict(result)
    return document | {"output": str(result.output)}


def _show(result: "RebuildResult") -> None:
    common.say(f"{count_of(result.records, 'message')} read, up to log offset {result.end_offset:,}")
    if result.queues:
        common.say(
            f"consume queues: {count_of(result.queues, 'queue')}, {result.queue_entries:,} entries in "
            f"{count_of(result.queue_files, 'file')}"
        )
    if result.index_files:
        common.say(f"index: {count_of(result.index_entries, 'key')} in {count_of(len(result.index_files), 'file')}")
    if result.left_out:
        common.say(f"{result.left_out:,} entries were left out (repeated or falling offsets), as a broker does")
    if result.misplaced:
        common.complain(
            f"{result.misplaced:,} entries are in wrong positions, where a broker would write them too, because of "
            "a gap in the log or a topic that was deleted and made again; see --topic-start and --live-topics-only"
        )
    common.say(f"written to {result.output}")
    for omission in result.not_served:
        common.complain(f"missing: {omission}")
    common.complain_of(result.damages)
