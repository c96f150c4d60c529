"""The tables that an export keeps beside its files, of any format."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from commitlogfs.pipeline.jobs.export_directory import FinishedRange
from commitlogfs.pipeline.jobs.table_commits import TableSize

if TYPE_CHECKING:
    import pyarrow as pa


class ExportTable(Protocol):
    """A table that has each finished range exactly once."""

    def add(self, finished: FinishedRange) -> bool: ...

    def size(self) -> TableSize: ...


class ExportTables:
    """The tables of one output, for one process."""

    def __init__(self, tables: Sequence[ExportTable]) -> None:
        self._tables = tables
        self._added: set[tuple[int, int]] = set()
        """Ranges that all tables are known to have: an export that follows a log gives each of them many times."""

    @classmethod
    def open(
        cls, output: str, schema: "pa.Schema", partition_by: Sequence[str], *, iceberg: str | None, delta: bool
    ) -> "ExportTables":
        """`iceberg`: CATALOG.NAMESPACE.TABLE; `delta`: whether the output is a Delta table. The other arguments are
        those of the tables. Raises OptionError, TableRefusedError."""
        tables: list[ExportTable] = []
        if iceberg is not None:
            from commitlogfs.pipeline.jobs.iceberg_table import IcebergTable

            tables.append(IcebergTable(iceberg, output, schema, partition_by))
        if delta:
            from commitlogfs.pipeline.jobs.delta_table import DeltaTable

            tables.append(DeltaTable(output, schema, partition_by))
        return cls(tables)

    def add(self, finished: FinishedRange) -> None:
        """Raises TableRefusedError."""
        if (finished.start, finished.end) in self._added:
            return
        for table in self._tables:
            table.add(finished)
        self._added.add((finished.start, finished.end))

    def sizes(self) -> list[TableSize]:
        """Raises TableRefusedError."""
        return [table.size() for table in self._tables]
