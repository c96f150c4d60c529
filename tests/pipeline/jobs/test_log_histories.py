"""Exports, streams and replays while a log is appended to, cleaned, wiped, cut and written anew at random: each has
messages of the present log only and all of them, or ends with an error, and no error is a false one."""

import json
import random
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from support.clocks import SHORT_WAITS
from support.in_process_spark import InProcessSpark
from support.log_histories import LivingLog
from support.mortal_filesystem import Killed, Mortal
from support.settled_logs import export

from commitlogfs.console.errors import RefusedError
from commitlogfs.pipeline.jobs.export import ExportRequest, ExportResult
from commitlogfs.pipeline.jobs.export_directory import ExportDirectory, ExportRefusedError
from commitlogfs.pipeline.log.identity import Fingerprint
from commitlogfs.pipeline.log.losses import DataLossError
from commitlogfs.pipeline.log.scanner import DamageMode
from commitlogfs.pipeline.replay.logged import LogSource
from commitlogfs.pipeline.replay.run import ReplayRequest
from commitlogfs.pipeline.source.columns import COLUMNS
from commitlogfs.pipeline.source.options import parse_options
from commitlogfs.pipeline.source.rows import RowReader
from commitlogfs.pipeline.source.selection import RecordFilter
from commitlogfs.pipeline.source.stream_reader import CommitlogStreamReader, Offset

STEPS = 14
Rows = set[tuple[int, bytes]]


class Exporter:
    def __init__(self, log: LivingLog, directory: Path, random_: random.Random) -> None:
        self._log, self._out, self._random = log, directory / "out", random_
        self._range_size = random_.choice([None, 1])
        self.refusals = 0

    def step(self) -> None:
        if self._random.random() < 0.3:
            with suppress(Killed, ExportRefusedError, DataLossError):
                self._run(replace=self._random.random() < 0.3, changes=self._random.randint(0, 25))
        try:
            self._run()
        except ExportRefusedError:
            self.refusals += 1
            assert self._is_mixed(), "a false refusal"
            kept = self._run(replace=True).kept
        except DataLossError:
            finished_to = max(one.end for one in ExportDirectory(str(self._out)).finished())
            assert self._log.log.end < finished_to or self._log.begin > finished_to, "a false loss"
            shutil.rmtree(self._out)
            self._run()
            kept = ()
        else:
            kept = ()
        if kept:  # reported, with exit status 1: a range that goes past the end of the log
            assert all(one.end > self._log.log.end or one.start < self._log.begin for one in kept)
            shutil.rmtree(self._out)
            return
        rows = self._rows()
        assert rows <= {*self._log.rows}, "messages of another log"
        assert rows >= self._log.present, "messages are missing"

    def _run(self, *, replace: bool = False, changes: int | None = None) -> ExportResult:
        request = ExportRequest(str(self._log.log.directory), str(self._out), range_size=self._range_size)
        if replace:
            request = ExportRequest(request.log, request.output, range_size=self._range_size, replace=True)
        directory = ExportDirectory(request.output)
        if changes is not None:
            directory._fs = Mortal(directory._fs, changes)
        return export(cast("Any", InProcessSpark()), request, {"splitSize": "3k"}, directory=directory)

    def _is_mixed(self) -> bool:
        """Whether the output has, or had before a removal was killed, messages that are not in the log."""
        finished = ExportDirectory(str(self._out)).finished()
        is_there = [(self._out / file.path).exists() for one in finished for file in one.files]
        return bool(self._rows() - {*self._log.rows}) or not all(is_there)

    def _rows(self) -> Rows:
        rows: list[tuple[int, bytes]] = []
        for path in self._out.rglob("*.parquet"):
            if "_commitlogfs" not in path.parts:
                table = pq.ParquetFile(path).read(["commitLogOffset", "body"])
                rows += zip(*(table.column(name).to_pylist() for name in table.column_names), strict=True)
        assert len(rows) == len({*rows}), "a message is there twice"
        return {*rows}


class Stream:
    """A query whose checkpoint is a JSON text, and whose sink is a set."""

    def __init__(self, log: LivingLog, random_: random.Random) -> None:
        self._log, self._random = log, random_
        self._batch: tuple[str, str] | None = None
        """Offsets of a batch that was planned and not finished."""
        self._begin()

    def _begin(self) -> None:
        self._reader = self._new_reader()
        self._at, self._rows, self._batch = json.dumps(self._reader.initialOffset()), Rows(), None

    def step(self) -> None:
        if self._random.random() < 0.5:
            self._reader = self._new_reader()  # the process was killed
        try:
            if self._batch is None:
                end = self._reader.latestOffset(json.loads(self._at), ReadAllAvailable())
                if json.dumps(end) == self._at:
                    return
                self._batch = self._at, json.dumps(end)
                if self._random.random() < 0.3:
                    return
            start, end = map(json.loads, self._batch)
            self._rows |= {*self._read(start, end)}
            self._at, self._batch = self._batch[1], None
        except DataLossError:
            offset = json.loads(self._batch[1] if self._batch else self._at)["offset"]
            was_planned = self._batch is not None
            is_cleaned = self._log.begin > json.loads(self._at)["offset"]
            assert was_planned or is_cleaned or self._log.log.end < offset or self._rows - {*self._log.rows}, (
                "a false loss"
            )
            self._begin()
            return
        assert self._rows <= {*self._log.rows}, "messages of another log"

    def _new_reader(self) -> CommitlogStreamReader:
        options = parse_options(
            {"path": str(self._log.log.directory), "startingOffsets": "earliest"}, streaming=True
        )
        rows = RowReader(
            schema=pa.schema([COLUMNS.field("commitLogOffset"), COLUMNS.field("body")]),
            filter=RecordFilter.of(options),
            mode=DamageMode.FAILFAST,
            check_crc=True,
            fail_on_data_loss=True,
        )
        return CommitlogStreamReader(options, rows, clock=SHORT_WAITS)

    def _read(self, start: Offset, end: Offset) -> Iterator[tuple[int, bytes]]:
        for partition in self._reader.partitions(start, end):
            for batch in self._reader.read(partition):
                yield from zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)


class Replay:
    def __init__(self, log: LivingLog) -> None:
        self._log = log
        self._position: int | None = None
        self._last: Fingerprint | None = None
        self._rows = Rows()

    def step(self) -> None:
        request = ReplayRequest.of({"path": str(self._log.log.directory)}, "none:1", {}, None)
        try:
            source = LogSource.plan(request.options, self._position, self._last, clock=SHORT_WAITS)
        except (RefusedError, DataLossError):
            position = self._position or 0
            assert self._rows - {*self._log.rows} or self._log.log.end < position or self._log.begin > position
            self._position, self._last, self._rows = None, None, Rows()
            return
        self._rows |= {(row.offset, row.body) for row in source.rows()}
        self._position = max((stop for _, stop in source.ranges), default=self._position or 0)
        self._last = source.fingerprint(self._position)
        assert self._rows <= {*self._log.rows}, "messages of another log"
        assert self._rows >= self._log.present, "messages are missing"


@pytest.mark.parametrize(
    "seed",
    [
        *range(3),
        *(pytest.param(seed, marks=pytest.mark.full) for seed in range(3, 30)),
        *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(30, 500)),
    ],
)
def test_each_reader_has_the_messages_of_one_log(tmp_path: Path, seed: int) -> None:
    random_ = random.Random(seed)  # noqa: S311
    log = LivingLog(tmp_path / "log", random_)
    readers: list[Exporter | Stream | Replay] = [
        Exporter(log, tmp_path, random_),
        Stream(log, random_),
        Replay(log),
    ]
    for _ in range(STEPS):
        for _ in range(random_.randint(0, 2)):
            log.live()
        for reader in readers:
            if random_.random() < 0.7:
                reader.step()
