"""An Iceberg table of the files of an export: each finished range is one commit, and no range is added twice.

The table's properties say which ranges it has. They change in the same commit that adds the files of a range, so
whatever kills a run, the next one adds exactly what is missing. (A snapshot carries the range, too, but snapshots
expire.) The table refers to the files of the output; deleting these breaks it.
"""

import json
import random
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from commitlogfs.pipeline.jobs.export_directory import ExportDirectory, FinishedRange
from commitlogfs.pipeline.jobs.export_tasks import PARTITION_SOURCES
from commitlogfs.pipeline.jobs.table_commits import (
    END,
    START,
    TableRefusedError,
    TableSize,
    first_line,
    plain_place,
    refusals,
    require_extensible,
)
from commitlogfs.pipeline.log.errors import OptionError
from commitlogfs.pipeline.log.identity import Fingerprint
from commitlogfs.store.clock import SYSTEM_CLOCK, Clock
from commitlogfs.store.gaps import uncovered

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import Table, Transaction

RANGES: Final = "commitlogfs.ranges"
"""Property of the table: its ranges of log offsets as JSON, merged."""
LOG: Final = "commitlogfs.log"
"""Property of the table: fingerprint of the last message of the range that was added last, as JSON."""
OUTPUT: Final = "commitlogfs.output"
"""Property of the table: the output whose files it has."""

_BOUNDED: Final = {"commit.manifest-merge.enabled": "true", "write.metadata.delete-after-commit.enabled": "true"}
"""Properties of a new table, without which each commit reads and writes more than the one before."""
_PAUSES_S: Final = (0.1, 0.5, 2.0, 5.0, 10.0)
"""Longest pauses between attempts to commit, while others change the table."""

Range = tuple[int, int]


class IcebergTable:
    """A table of a catalog that pyiceberg is configured for (~/.pyiceberg.yaml, PYICEBERG_CATALOG__...)."""

    def __init__(
        self,
        name: str,
        output: str,
        schema: "pa.Schema",
        partition_by: Sequence[str],
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """`name`: CATALOG.NAMESPACE.TABLE. `output`: place of the export, an absolute directory or a URI. The table
        is created if it does not exist, with its namespace; one that lacks columns of `schema` gets them.

        Raises OptionError for a name or catalog that is unknown, TableRefusedError for a table that another export
        has made, or that has more columns.
        """
        self._name, self._output, self._clock = name, plain_place(output), clock
        self._empty: list[Range] = []
        """Ranges without rows, which the next commit records."""
        self._table = self._open(schema, partition_by)

    def add(self, finished: FinishedRange) -> bool:
        """Add the files of this range in one commit, unless the table has it; whether this call has added it.

        Raises TableRefusedError.
        """
        if not finished.files:
            self._empty.append((finished.start, finished.end))
            return False
        if not self._missing(finished):
            return False
        with refusals(self._name):
            for pause_s in _PAUSES_S:
                self._table.refresh()  # others may have changed it since
                if not self._missing(finished):
                    return False
                if self._commit(finished):
                    return True
                self._clock.sleep(random.uniform(0, pause_s))  # noqa: S311
        raise TableRefusedError(f"{self._name}: others change it all the time; try again later")

    def _commit(self, finished: FinishedRange) -> bool:
        """False if others have changed the table since it was read."""
        from pyiceberg.exceptions import CommitFailedException
        from pyiceberg.table import TableProperties

        # The library would repeat a commit without asking again which ranges the table has.
        once = {**self._table.metadata.properties, TableProperties.COMMIT_NUM_RETRIES: "0"}
        self._table.metadata = self._table.metadata.model_copy(update={"properties": once})
        paths = [f"{self._output.rstrip('/')}/{file.path}" for file in finished.files]
        ranges = json.dumps(_merged([*self.ranges(), *self._empty, (finished.start, finished.end)]))
        offsets = {START: str(finished.start), END: str(finished.end)}
        try:
            with self._table.transaction() as change:
                # The ranges show what the table has: to look for each path in all its files would take ever longer.
                change.add_files(paths, snapshot_properties=offsets, check_duplicate_files=False)
                change.set_properties({RANGES: ranges, LOG: json.dumps([asdict(one) for one in finished.log[-1:]])})
        except CommitFailedException:
            return False
        self._empty.clear()
        return True

    def size(self) -> TableSize:
        """Raises TableRefusedError."""
        with refusals(self._name):
            snapshot = self._table.current_snapshot()
        summary = snapshot.summary if snapshot is not None else None
        known = summary.additional_properties if summary is not None else {}
        files, size = (int(known.get(name, 0)) for name in ("total-data-files", "total-files-size"))
        return TableSize(self._name, files, size, "rewrite_data_files")

    def _missing(self, finished: FinishedRange) -> bool:
        """Whether the table lacks this range. Raises TableRefusedError if it has a part of it."""
        missing = uncovered(finished.start, finished.end, self.ranges())
        if missing not in ([], [(finished.start, finished.end)]):
            raise TableRefusedError(
                f"{self._name}: has a part of the log offsets {finished.start} to {finished.end}, not all of them; "
                "export into another table"
            )
        return bool(missing)

    def ranges(self) -> list[Range]:
        """Those that the table has, in order."""
        return [(start, end) for start, end in json.loads(self._table.properties.get(RANGES, "[]"))]

    def _open(self, schema: "pa.Schema", partition_by: Sequence[str]) -> "Table":
        catalog_name, identifier = split_name(self._name)
        try:
            from pyiceberg.catalog import load_catalog
            from pyiceberg.exceptions import NoSuchTableError
        except ImportError:
            raise TableRefusedError(
                f"{self._name}: pyiceberg is not installed; run: pip install 'commitlogfs[iceberg]'"
            ) from None
        with refusals(self._name):
            try:
                catalog = load_catalog(catalog_name)
            except ValueError as error:
                raise OptionError(f"--iceberg {self._name}: catalog {catalog_name}: {first_line(error)}") from None
            try:
                table = catalog.load_table(identifier)
            except NoSuchTableError:
                catalog.create_namespace_if_not_exists(identifier.rpartition(".")[0])
                properties = {OUTPUT: self._output, **_BOUNDED}
                with catalog.create_table_transaction(identifier, schema, properties=properties) as change:
                    _partition(change, partition_by)
                table = catalog.load_table(identifier)
        self._require_ours(table)
        before = [name for name in table.schema().column_names if "." not in name]
        require_extensible(self._name, before, schema.names)
        if {*schema.names} - {*before}:
            with refusals(self._name), table.update_schema() as change_columns:
                change_columns.union_by_name(schema)
        return table

    def _require_ours(self, table: "Table") -> None:
        output = table.properties.get(OUTPUT)
        if output != self._output:
            made_by = "was not made by an export" if output is None else f"has the files of {output}"
            raise TableRefusedError(f"{self._name}: {made_by}; name another table")
        if RANGES in table.properties and not self._is_of_output(table.properties.get(LOG, "[]")):
            raise TableRefusedError(
                f"{self._name}: has messages of another log than {self._output}, which was removed and exported "
                "again; name another table"
            )

    def _is_of_output(self, log: str) -> bool:
        """Whether the output has a range with a message that the table's property says is its last one."""
        known = {fingerprint for one in ExportDirectory(self._output).finished() for fingerprint in one.log}
        return any(Fingerprint.of_json(one) in known for one in json.loads(log))


def split_name(name: str) -> tuple[str, str]:
    """Catalog, and the table in it, of CATALOG.NAMESPACE.TABLE. Raises OptionError."""
    catalog, _, table = name.partition(".")
    if "." not in table or not all([catalog, *table.split(".")]):
        raise OptionError(f"--iceberg {name}: is not CATALOG.NAMESPACE.TABLE")
    return catalog, table


def _merged(ranges: Sequence[Range]) -> list[Range]:
    merged: list[Range] = []
    for start, end in sorted(ranges):
        if merged and merged[-1][1] >= start:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _partition(change: "Transaction", partition_by: Sequence[str]) -> None:
    """By the columns that each file has one value of, or one day."""
    from pyiceberg.transforms import DayTransform, IdentityTransform

    with change.update_spec() as spec:
        for name in partition_by:
            spec.add_field(PARTITION_SOURCES[name], DayTransform() if name == "date" else IdentityTransform(), name)
