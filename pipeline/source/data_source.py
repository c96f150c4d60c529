"""`format("commitlog")`. Imported by Spark wherever it looks for data sources, so little is loaded here."""

import difflib
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from commitlogfs.pipeline.log.errors import OptionError, PipelineError
from commitlogfs.pipeline.log.locations import absolute_places
from commitlogfs.pipeline.source.options import ReadOptions, parse_options
from commitlogfs.pipeline.source.worker_task import short_errors

if TYPE_CHECKING:
    import pyarrow as pa

    from commitlogfs.pipeline.source.rows import RowReader

COLUMN_TYPES: Final[dict[str, DataType]] = {
    "topic": StringType(),
    "queueId": IntegerType(),
    "queueOffset": LongType(),
    "commitLogOffset": LongType(),
    "storeSize": IntegerType(),
    "body": BinaryType(),
    "properties": MapType(StringType(), StringType()),
    "tags": StringType(),
    "keys": StringType(),
    "uniqKey": StringType(),
    "transactionId": StringType(),
    "flag": IntegerType(),
    "sysFlag": IntegerType(),
    "bornTimestamp": TimestampType(),
    "storeTimestamp": TimestampType(),
    "bornHost": StringType(),
    "storeHost": StringType(),
    "reconsumeTimes": IntegerType(),
    "preparedTransactionOffset": LongType(),
    "bodyCRC": IntegerType(),
    "magicCode": IntegerType(),
    "segment": StringType(),
}
"""`columns.COLUMNS` in Spark's words."""
_CHOSEN_ONLY: Final[dict[str, DataType]] = {"damage": StringType()}
_PUSHDOWN_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"


class CommitlogDataSource(DataSource):
    """The messages of a RocketMQ commitlog, one row each, straight from its segments: no broker is asked.

    Name: `commitlog`. Batch and stream. Works on a mount, on a broker's plain folder, on the bare folders of the
    disks, and on any URI that pyarrow.fs understands (s3, gs, hdfs, file), on a log that is being written, too.

        df = spark.read.format("commitlog").load("/var/rocketmq/store/commitlog")
        df.groupBy("topic").count().show()

    Columns: topic string, queueId int, queueOffset long, commitLogOffset long, storeSize int, body binary,
    properties map<string,string>, tags string, keys string, uniqKey string, transactionId string, flag int,
    sysFlag int, bornTimestamp timestamp, storeTimestamp timestamp, bornHost string, storeHost string,
    reconsumeTimes int, preparedTransactionOffset long, bodyCRC int, magicCode int, segment string. All as stored:
    the body of a compressed message (sysFlag bit 0) is compressed.

    Spark does not tell a Python source which columns a query needs. A schema does, and what is not in it is
    neither decoded nor moved, so always give one:

        spark.read.format("commitlog").schema("topic string, storeTimestamp timestamp").load(path)

    Options (names in any case; an unknown one is an error):

    path                     commitlog folder, comma list of disk folders, or URI; the argument of load()
    segmentSize              bytes; that of the largest file
    topic, topicPattern      comma list of names, or a regular expression for the whole name; all
    queueId                  comma list; all
    startingOffsets          earliest, latest or a log offset; earliest for a batch, latest for a stream
    endingOffsets            latest or a log offset, exclusive; latest; batch only
    startingTimestamp        milliseconds since 1970: only messages stored then or later
    endingTimestamp          only messages stored before; batch only
    failOnDataLoss           true: what was to be read and is gone (deleted segments, a hole, a disk that is not
                             mounted, the beginning that a degraded mount may lack, a last segment that was cut
                             short) is an error; false: it is logged as lost, and reading goes on behind it
    maxBytesPerTrigger       of the log, per micro-batch, one message at least; stream only
    maxOffsetsPerTrigger     messages per micro-batch, before any filter; stream only
    minPartitions            at least so many, where the log is large enough
    splitSize                bytes of a partition: parts of segments, never of a message; 128m, more for a log of
                             more than 1.2 TiB
    includeSystemTopics      false; the broker's own topics (rmq_sys_*, SCHEDULE_TOPIC_XXXX, ...) are left out
                             unless named by `topic`
    includeHalfMessages      false; so are transactions that are not decided, and rollbacks
    mode                     FAILFAST: damage is an error that names segment and offset. PERMISSIVE: it is skipped
                             up to the next message, and said: in a column `damage string`, if the schema has one, a
                             row for each skipped range, with commitLogOffset, storeSize and segment; otherwise as a
                             warning in the executor's log
    checkCrc                 true: a body that is asked for must match its CRC

    Partitions are ranges of segments, in the log's order. A time range is found by a binary search, a clock that
    was set back by up to a minute allowed for; where times are seen to fall by more, more is read, with a warning.

    Streams: an offset is the log offset of the next message. A message is taken when it is whole: when another
    one follows, or when it has not changed for 0.2 s. Trigger.AvailableNow reads up to where the log ended at the
    start. A restart from its checkpoint reads the same ranges again, so with an idempotent sink each message
    arrives exactly once.

        (spark.readStream.format("commitlog").option("startingOffsets", "earliest").load(path)
            .writeStream.option("checkpointLocation", "/data/cp").toTable("messages"))

    Conditions on topic, queueId, commitLogOffset and storeTimestamp are pushed down where
    spark.sql.python.filterPushdown.enabled is on: whole splits are then never opened. It is off by default, and
    with reason: Spark (4.3.0) keeps the plan of the first query on what load() returned and uses it for all later
    ones, and for other branches of the same query, so rows are silently missing unless every load() is used for
    one condition only. The options narrow in the same way and are always right. Also without pushdown the
    partitions of what load() returned are planned once: load again to see newer messages.
    """

    @classmethod
    def name(cls) -> str:
        return "commitlog"

    @short_errors()
    def schema(self) -> StructType:
        parse_options(self.options)
        return StructType([StructField(name, kind) for name, kind in COLUMN_TYPES.items()])

    @short_errors()
    def reader(self, schema: StructType) -> DataSourceReader:
        from commitlogfs.pipeline.source.reader import CommitlogReader, PushingReader

        options = _located(parse_options(self.options, streaming=False))
        kind = PushingReader if _is_pushing() else CommitlogReader
        return kind(options, _row_reader(options, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from commitlogfs.pipeline.source.stream_reader import CommitlogStreamReader, RefusedStreamReader

        try:
            options = _located(parse_options(self.options, streaming=True))
            return CommitlogStreamReader(options, _row_reader(options, schema))
        except PipelineError as error:
            return RefusedStreamReader(error)


def _is_pushing() -> bool:
    """Whether Spark asks for a reader to push conditions into: it does so in a worker of its own, and refuses a
    reader that takes conditions everywhere else."""
    return _PUSHDOWN_WORKER in sys.modules


def _located(options: ReadOptions) -> ReadOptions:
    """Folders as the driver means them: an executor may work in another one."""
    return replace(options, path=absolute_places(options.path))


def _row_reader(options: ReadOptions, schema: StructType) -> "RowReader":
    from commitlogfs.pipeline.log.scanner import DamageMode
    from commitlogfs.pipeline.source.rows import RowReader
    from commitlogfs.pipeline.source.selection import RecordFilter

    check_schema(schema)
    return RowReader(
        schema=_arrow_schema(schema),
        wanted=RecordFilter.of(options),
        mode=DamageMode.PERMISSIVE if options.permissive else DamageMode.FAILFAST,
        check_crc=options.check_crc,
        fail_on_data_loss=options.fail_on_data_loss,
    )


def check_schema(schema: StructType) -> None:
    """OptionError unless every column of `schema` is one of ours, in its type, once."""
    known = COLUMN_TYPES | _CHOSEN_ONLY
    seen = set()
    for field in schema.fields:
        if field.name not in known:
            by_lower_case = {name.lower(): name for name in known}
            close = difflib.get_close_matches(field.name.lower(), by_lower_case, n=1)
            hint = f"did you mean {by_lower_case[close[0]]}?" if close else f"there are {', '.join(known)}"
            raise OptionError(f"schema: no column {field.name}: {hint}")
        wanted = known[field.name]
        if field.dataType.simpleString() != wanted.simpleString():
            raise OptionError(
                f"schema: column {field.name} is {wanted.simpleString()}, not {field.dataType.simpleString()}"
            )
        if field.name in seen:
            raise OptionError(f"schema: column {field.name} is there twice")
        seen.add(field.name)


def _arrow_schema(schema: StructType) -> "pa.Schema":
    """`schema` as PySpark itself makes it Arrow: batches must have exactly this one."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")
