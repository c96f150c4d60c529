"""The log as a growing table of Parquet files: a streaming query, from a checkpoint, each message exactly once.

What Spark's own file sink writes counts for readers that go by its `_spark_metadata` (Spark does). Other readers
may see the files of a micro-batch that was killed beside those of its repetition; `export` has no such moment.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from commitlogfs.pipeline.jobs.export_folder import OWN, ExportRefusedError
from commitlogfs.pipeline.jobs.export_tasks import PARTITION_COLUMNS
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
    """Start the query: what the log has from its begin on, and what it gets. It goes on until it is stopped; with
    `available_now`, until it has read what is there now. `output`: anything that Spark can write to.

    `options`: those of `readStream.format("commitlog")`. The same output and checkpoint (`OUTPUT/_checkpoint` by
    default) go on where they ended. Each micro-batch is shuffled by topic and date, so that it makes one file of
    each. Raises OptionError, ExportRefusedError.
    """
    given = _checked_options(log, output, partition_by, options or {})
    rows = _read_stream(spark, log, columns, partition_by, given)
    if partition_by:
        rows = rows.repartition(*partition_by)
    kept = [*columns, *(name for name in partition_by if name not in columns)]
    writer = (
        rows.select(*kept)
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
        raise OptionError(f"no partition by {', '.join(unknown)}: there are {', '.join(PARTITION_COLUMNS)}")
    folder = local_path(output)
    if folder is not None and (folder / OWN).exists():
        raise ExportRefusedError(f"{output} was made by exports of whole ranges: name another output")
    return given


def _read_stream(
    spark: "SparkSession",
    log: str,
    columns: Sequence[str],
    partition_by: Sequence[str],
    options: Mapping[str, str],
) -> "DataFrame":
    """The columns, and those that the partitions are made of."""
    from pyspark.sql.functions import col, to_date

    needed = [name for name, by in (("topic", "topic"), ("storeTimestamp", "date")) if by in partition_by]
    names = [*columns, *(name for name in needed if name not in columns)]
    rows = spark.readStream.format("commitlog").options(**options).schema(_schema(names)).load(log)
    return rows.withColumn("date", to_date(col("storeTimestamp"))) if "date" in partition_by else rows


def wait(query: "StreamingQuery") -> None:
    """Until the query ends. Raises StreamFailedError with the one line that says why."""
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
    from commitlogfs.pipeline.source.data_source import COLUMN_TYPES

    unknown = [name for name in names if name not in COLUMN_TYPES]
    if unknown:
        raise OptionError(f"no column {', '.join(unknown)}: there are {', '.join(COLUMN_TYPES)}")
    return ", ".join(f"{name} {COLUMN_TYPES[name].simpleString()}" for name in names)
