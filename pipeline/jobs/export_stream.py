"""Exports the log as a growing table of Parquet files: a streaming query with a checkpoint, each message exactly
once.

Spark's file sink guarantees this for readers that use its `_spark_metadata` (Spark does). Other readers may see the
files of a micro-batch that was killed beside those of its repetition; `export` does not have this problem.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from commitlogfs.pipeline.jobs.export_directory import OWN, ExportRefusedError
from commitlogfs.pipeline.jobs.export_tasks import PARTITION_COLUMNS, PARTITION_SOURCES
from commitlogfs.pipeline.log.errors import OptionError, PipelineError
from commitlogfs.pipeline.log.locations import local_path
from commitlogfs.pipeline.source.columns import COLUMNS
from commitlogfs.pipeline.source.options import parse_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

DEFAULT_INTERVAL_S: Final = 60.0
_CHECKPOINT: Final = "_checkpoint"


class StreamFailedError(PipelineError):
    """A streaming query ended with an error."""


def follow(
    spark: "SparkSession",
    log: str,
    output: str,
    *,
    columns: Sequence[str] = tuple(COLUMNS.names),
    partition_by: Sequence[str] = PARTITION_COLUMNS,
    compression: str = "zstd",
    checkpoint: str | None = None,
    interval_s: float = DEFAULT_INTERVAL_S,
    available_now: bool = False,
    options: Mapping[str, str] | None = None,
) -> "StreamingQuery":
    """Start a query that exports the log from its beginning and continues until it is stopped; with
    `available_now`, until it has read the log as it is at the start. `output`: any path that Spark can write to.

    `options`: those of `readStream.format("commitlog")`. A query with the same output and checkpoint
    (`OUTPUT/_checkpoint` by default) continues an earlier one. Each micro-batch is shuffled by topic and date, so
    that it makes one file of each. Raises OptionError, ExportRefusedError.
    """
    given = _checked_options(log, output, partition_by, options or {})
    rows = _read_stream(spark, log, columns, partition_by, given)
    if partition_by:
        rows = rows.repartition(*partition_by)
    selected = [*columns, *(name for name in partition_by if name not in columns)]
    writer = (
        rows.select(*selected)
        .writeStream.format("parquet")
        .outputMode("append")
        .option("path", output)
        .option("checkpointLocation", checkpoint or f"{output.rstrip('/')}/{_CHECKPOINT}")
        .option("compression", compression)
        .partitionBy(*partition_by)
    )
    if available_now:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{interval_s} seconds").start()


def _checked_options(
    log: str, output: str, partition_by: Sequence[str], options: Mapping[str, str]
) -> dict[str, str]:
    """The options of the stream. Raises OptionError, ExportRefusedError."""
    given = {"startingOffsets": "earliest", **options}
    if any(name.lower() == "startingtimestamp" for name in given):
        del given["startingOffsets"]
    parse_options({"path": log, **given}, streaming=True)
    unknown = [name for name in partition_by if name not in PARTITION_COLUMNS]
    if unknown:
        allowed = ", ".join(PARTITION_COLUMNS)
        raise OptionError(f"partition by {', '.join(unknown)}: is not supported; the columns are {allowed}")
    directory = local_path(output)
    if directory is not None and (directory / OWN).exists():
        raise ExportRefusedError(f"{output}: was made by exports of ranges, not by a stream; name another output")
    return given


def _read_stream(
    spark: "SparkSession",
    log: str,
    columns: Sequence[str],
    partition_by: Sequence[str],
    options: Mapping[str, str],
) -> "DataFrame":
    """The requested columns, and those that the partitions need."""
    from pyspark.sql.functions import col, to_date

    needed = [PARTITION_SOURCES[by] for by in PARTITION_COLUMNS if by in partition_by]
    names = [*columns, *(name for name in needed if name not in columns)]
    rows = spark.readStream.format("commitlog").options(**options).schema(_schema(names)).load(log)
    return rows.withColumn("date", to_date(col("storeTimestamp"))) if "date" in partition_by else rows


def wait(query: "StreamingQuery") -> None:
    """Wait until the query ends. Raises StreamFailedError with the reason in one line."""
    from pyspark.errors import PySparkException

    from commitlogfs.pipeline.jobs.worker_errors import worker_errors

    with worker_errors():
        try:
            query.awaitTermination()
        except PySparkException as error:
            if "commitlogfs.pipeline." in str(error):
                raise
            raise StreamFailedError(f"the stream ended: {str(error).splitlines()[0]}") from error


def _schema(names: Sequence[str]) -> str:
    from commitlogfs.pipeline.source.data_source import COLUMN_TYPES, TEXT_TYPE

    known = COLUMN_TYPES | TEXT_TYPE
    unknown = [name for name in names if name not in known]
    if unknown:
        raise OptionError(f"column {', '.join(unknown)}: is unknown; the columns are {', '.join(known)}")
    return ", ".join(f"{name} {known[name].simpleString()}" for name in names)
