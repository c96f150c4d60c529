"""The output of an export as a Delta table: each finished range is one commit, and no range is added twice.

The table's log is in the output itself, `_delta_log`; its files are those of the export. A commit records its range
as a transaction of the application `commitlogfs BEGIN`, where BEGIN is the offset at which the row of adjoining
ranges begins; the version is the range's end. So whatever kills a run, the next one adds exactly what is missing.
(An application for each range would make the table's log grow for ever; a single one would need all ranges in
order.)
"""

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from commitlogfs.pipeline.jobs.export_directory import ExportDirectory, FinishedRange, partition_values
from commitlogfs.pipeline.jobs.table_commits import (
    END,
    START,
    TableRefusedError,
    TableSize,
    plain_place,
    refusals,
    require_extensible,
)
from commitlogfs.store.clock import SYSTEM_CLOCK, Clock
from commitlogfs.store.gaps import uncovered

if TYPE_CHECKING:
    import deltalake

_PARTITION_TYPES: Final = {"topic": pa.string(), "date": pa.date32()}
_APPLICATION: Final = "commitlogfs"
_MODE: Final = "append"
_COMPACTION: Final = "OPTIMIZE"


class DeltaTable:
    """The table of one output."""

    def __init__(
        self, output: str, schema: pa.Schema, partition_by: Sequence[str], *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        """`output`: place of the export, an absolute directory or a URI. `schema`: columns of its files. The table
        is created with its first range; one that lacks columns of `schema` gets them.

        Raises TableRefusedError for a table with more columns, or if the library is missing.
        """
        self._output, self._partition_by, self._clock = plain_place(output), list(partition_by), clock
        absent = [pa.field(name, _PARTITION_TYPES[name]) for name in partition_by if name not in schema.names]
        self._schema = pa.schema([*schema, *absent])
        self._directory = ExportDirectory(output)
        self._rows: dict[int, int] = {}
        """The table's rows of adjoining ranges: BEGIN -> end."""
        self._empty: dict[int, int] = {}
        """Ranges without rows, which the table's log does not have: start -> end."""
        try:
            import deltalake
        except ImportError:
            raise TableRefusedError(
                "--delta: deltalake is not installed; run: pip install 'commitlogfs[delta]'"
            ) from None
        with self._refusals():
            exists = deltalake.DeltaTable.is_deltatable(output)
        self._table = self._open() if exists else None

    def add(self, finished: FinishedRange) -> bool:
        """Add the files of this range in one commit, unless the table has it; whether it was added. All finished
        ranges of the output must be given, in the order of the log. Raises TableRefusedError."""
        if not finished.files:
            self._empty[finished.start] = finished.end
            return False
        if not self._missing(finished):
            return False
        with self._refusals():
            table = self._table = self._table or self._open()
            table.update_incremental()
            begin = self._row_before(table, finished)
            if begin is None:
                return False
            self._directory.require_files(finished)  # a VACUUM deletes those that are in no table yet
            self._commit(table, finished, begin)
            self._rows[begin] = finished.end
        return True

    def size(self) -> TableSize:
        """Raises TableRefusedError."""
        if self._table is None:
            return TableSize(self._output, 0, 0, _COMPACTION)
        with self._refusals():
            self._table.update_incremental()
            sizes = pa.table(self._table.get_add_actions())["size_bytes"].to_pylist()
        return TableSize(self._output, len(sizes), sum(sizes), _COMPACTION)

    def _row_before(self, table: "deltalake.DeltaTable", finished: FinishedRange) -> int | None:
        """Where the row begins that this range continues, or begins itself; None if the table has the range."""
        for begin in {*self._rows, finished.start}:
            end = table.transaction_version(_application(begin))
            if end is not None:
                self._rows[begin] = end
        missing = self._missing(finished)
        if not missing:
            return None
        if missing != [(finished.start, finished.end)]:
            raise TableRefusedError(
                f"{self._output}: the Delta table has a part of the log offsets {finished.start} to "
                f"{finished.end}, not all of them; export into another output"
            )
        adjoining = (begin for begin, end in self._rows.items() if self._without_empty(end) == finished.start)
        return next(adjoining, finished.start)

    def _missing(self, finished: FinishedRange) -> list[tuple[int, int]]:
        """The parts of a range that are in no known row."""
        return uncovered(finished.start, finished.end, sorted(self._rows.items()))

    def _without_empty(self, offset: int) -> int:
        """Where the next range begins that has rows."""
        while offset in self._empty:
            offset = self._empty[offset]
        return offset

    def _commit(self, table: "deltalake.DeltaTable", finished: FinishedRange, begin: int) -> None:
        import deltalake
        from deltalake.transaction import AddAction, RemoveAction

        actions: list[AddAction | RemoveAction] = [
            AddAction(
                path=file.path,  # the library escapes it
                size=file.size,
                partition_values=partition_values(file.path),
                modification_time=round(self._clock.wall() * 1000),
                data_change=True,
                stats=json.dumps({"numRecords": file.rows}),
            )
            for file in finished.files
        ]
        table.create_write_transaction(
            actions,
            _MODE,
            table.schema(),
            self._partition_by,
            commit_properties=deltalake.CommitProperties(
                custom_metadata={START: str(finished.start), END: str(finished.end)},
                app_transactions=[deltalake.Transaction(_application(begin), finished.end)],
            ),
        )

    def _open(self) -> "deltalake.DeltaTable":
        import deltalake

        with self._refusals():
            table = deltalake.DeltaTable.create(
                self._output, self._schema, mode="ignore", partition_by=self._partition_by or None
            )
            names = [field.name for field in table.schema().fields]
            require_extensible(self._output, names, self._schema.names)
            new = [field for field in self._schema if field.name not in names]
            if new:
                added = deltalake.Schema.from_arrow(pa.schema(new))
                table.alter.add_columns(added.fields)
        return table

    def _refusals(self) -> AbstractContextManager[None]:
        return refusals(f"{self._output}: as a Delta table")


def _application(begin: int) -> str:
    return f"{_APPLICATION} {begin}"
