"""A log as the source of a replay."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from commitlogfs.console.errors import RefusedError
from commitlogfs.pipeline.log.errors import SegmentGoneError, StartPastEndError
from commitlogfs.pipeline.log.identity import Fingerprint, fingerprint_before, is_same
from commitlogfs.pipeline.log.scanner import Damage, DamageMode
from commitlogfs.pipeline.log.seek import survey
from commitlogfs.pipeline.log.segments import LogListing
from commitlogfs.pipeline.log.splits import Split
from commitlogfs.pipeline.replay.frames import COLUMNS, Row, rows_of
from commitlogfs.pipeline.replay.source import Range, first_offset, other_log, past_end
from commitlogfs.pipeline.source.columns import ALL_COLUMNS
from commitlogfs.pipeline.source.options import ReadOptions
from commitlogfs.pipeline.source.reader import plan_surveyed
from commitlogfs.pipeline.source.rows import DAMAGE_COLUMN, RowReader
from commitlogfs.pipeline.source.selection import Bounds, RecordFilter
from commitlogfs.store.clock import SYSTEM_CLOCK, Clock


@dataclass(slots=True)
class LogSource:
    """The part of a log that is left to send."""

    options: ReadOptions
    splits: Sequence[Split]
    listing: LogListing
    damages: list[Damage] = field(default_factory=list)

    @classmethod
    def plan(
        cls,
        options: ReadOptions,
        position: int | None,
        last: Fingerprint | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> Self:
        """The log of these options from `position` on, which earlier runs have reached; `last`: what they found
        before it. Raises RefusedError if the log ends before the position, or is another one, and the errors of
        `survey` and `plan_surveyed`."""
        listing, log_end = survey(options.path, options.segment_size, clock=clock)
        if last is not None and is_same(listing, last) is False:
            raise RefusedError(other_log(options.path, position))
        options = replace(options, start=first_offset(options, position))
        try:
            bounds = Bounds(start_ms=options.start_ms, end_ms=options.end_ms)
            splits = plan_surveyed(options, bounds, listing, log_end)
        except StartPastEndError:
            if options.start == position:
                raise RefusedError(past_end(options.path, position)) from None
            raise
        return cls(options, splits, listing)

    @property
    def ranges(self) -> Sequence[Range]:
        return [(split.start_offset, split.stop_offset) for split in self.splits]

    def fingerprint(self, offset: int) -> Fingerprint | None:
        try:
            return fingerprint_before(self.listing, offset)
        except SegmentGoneError:
            return None  # deleted since it was read

    def rows(self) -> Iterator[Row]:
        for batch in self.batches():
            yield from rows_of(batch)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The messages with the columns of a replay. What is damaged is added to `damages`."""
        schema = pa.schema([ALL_COLUMNS.field(name) for name in (*COLUMNS, "segment")])
        reader = RowReader(
            schema=schema.append(pa.field(DAMAGE_COLUMN, pa.string())),
            filter=RecordFilter.of(self.options),
            mode=DamageMode.PERMISSIVE if self.options.permissive else DamageMode.FAILFAST,
            check_crc=self.options.check_crc,
            fail_on_data_loss=self.options.fail_on_data_loss,
            bodies=self.options.bodies,
        )
        for split in self.splits:
            for batch in reader.read(split):
                damaged = batch.column(DAMAGE_COLUMN).is_valid()
                if damaged.true_count:
                    self.damages += _damages(batch.filter(damaged))
                    yield batch.filter(pc.invert(damaged))
                else:
                    yield batch


def _damages(batch: pa.RecordBatch) -> list[Damage]:
    names = ("commitLogOffset", "storeSize", DAMAGE_COLUMN, "segment")
    return [Damage(*values) for values in zip(*(batch.column(name).to_pylist() for name in names), strict=True)]
