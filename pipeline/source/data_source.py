"""`format("commitlog")`. Spark imports this module wherever it searches for data sources, so it imports little."""

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
from commitlogfs.pipeline.source.group_keys import Kind
from commitlogfs.pipeline.source.options import ReadOptions, parse_options
from commitlogfs.pipeline.source.worker_task import short_errors

if TYPE_CHECKING:
    import pyarrow as pa

    from commitlogfs.pipeline.source.aggregation import AggregateReader
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
"""Spark's types for `columns.COLUMNS`."""
TEXT_TYPE: Final[dict[str, DataType]] = {"text": StringType()}
_CHOSEN_ONLY: Final[dict[str, DataType]] = {**TEXT_TYPE, "damage": StringType()}
"""Columns that only a given schema has."""
_KEY_TYPES: Final[dict[Kind, DataType]] = {
    Kind.TEXT: StringType(),
    Kind.NUMBER: IntegerType(),
    Kind.TIME: TimestampType(),
}
_PUSHDOWN_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"


class CommitlogDataSource(DataSource):
    """The messages of a RocketMQ commitlog, one row each, read from its segments without a broker.

    Name: `commitlog`. Batch and stream. Reads a mount, a broker's own directory, the bare directories of the disks,
    or any URI that pyarrow.fs understands (s3, gs, hdfs, file). A broker may be writing the log meanwhile.

        df = spark.read.format("commitlog").load("/var/rocketmq/store/commitlog")
        df.groupBy("topic").count().show()

    Columns: topic string, queueId int, queueOffset long, commitLogOffset long, storeSize int, body binary,
    properties map<string,string>, tags string, keys string, uniqKey string, transactionId string, flag int, sysFlag
    int, bornTimestamp timestamp, storeTimestamp timestamp, bornHost string, storeHost string, reconsumeTimes int,
    preparedTransactionOffset long, bodyCRC int, magicCode int, segment string. All values are as stored: the body
    of a compressed message (sysFlag bit 0) is compressed.

    A schema may also name the column `text string`: the body, decompressed (zlib, LZ4, zstd), as text. Bytes that
    are not UTF-8 become U+FFFD, as in Java, with a warning in the executor's log.

        messages = spark.read.format("commitlog").schema("topic string, text string").load(path)
        messages.selectExpr("topic", "from_json(text, 'order long, total double') AS order")

    Spark does not say which columns a query needs. A schema does, and columns that are not in it are neither
    decoded nor moved, so always give one:

        spark.read.format("commitlog").schema("topic string, storeTimestamp timestamp").load(path)

    Options (names are not case-sensitive; an unknown one is an error):

    path                     commitlog directory, comma list of disk directories, or URI; the argument of load()
    segmentSize              bytes; default: size of the largest file
    topic, topicPattern      comma list of names, or a regular expression for the whole name; default: all
    queueId                  comma list; default: all
    startingOffsets          earliest, latest or a log offset; default: earliest for a batch, latest for a stream
    endingOffsets            latest or a log offset, exclusive; default: latest; batch only
    startingTimestamp        milliseconds since 1970: only messages stored then or later
    endingTimestamp          only messages stored before; batch only
    failOnDataLoss           true: missing data is an error (deleted segments, a gap, a disk that is not mounted,
                             the beginning that a degraded mount may leave out, a truncated last segment); false: it
                             is logged as lost, and reading continues after it
    maxBytesPerTrigger       bytes of log per micro-batch, at least one message; stream only
    maxOffsetsPerTrigger     messages per micro-batch, before any filter; stream only
    minPartitions            minimum number of partitions, if the log is large enough
    splitSize                bytes of a partition: parts of segments, never of a message; default: 128m, more for a
                             log of more than 1.2 TiB
    includeSystemTopics      false: the broker's own topics (rmq_sys_*, SCHEDULE_TOPIC_XXXX, ...) are left out,
                             unless `topic` names them
    includeHalfMessages      false: undecided transactions and rollbacks are left out
    mode                     FAILFAST: damage is an error that names segment and offset. PERMISSIVE: damage is
                             skipped up to the next message, and reported: if the schema has a column `damage
                             string`, as a row for each skipped range, with commitLogOffset, storeSize and segment;
                             otherwise as a warning in the executor's log. A body that cannot be decompressed is
                             damage, too
    checkCrc                 true: the body must match its CRC, if the column body or text is requested
    decompress               false: `body` is as stored; true: decompressed. `text` always is
    maxBodySize              64m: a body that decompresses to more is damage; at most 1g
    unfold                   false; true: a batch that the broker has stored as one record (a topic with
                             queue.type=BatchCQ) becomes a row for each of its messages, as consumers get them
    aggregate                keys: the workers count, and each partition has one row for each group; batch only

    Aggregation in the workers is faster than groupBy on single messages, which all pass through the JVM. Keys are
    topic, tags, queueId, and minute, hour or day of storeTimestamp or bornTimestamp (UTC). The columns are those of
    the keys (`storeHour timestamp` for hour(storeTimestamp)), then messages long, bytes long (as stored), first
    timestamp and last timestamp (store times). Add up the partitions:

        (spark.read.format("commitlog").option("aggregate", "topic,hour(storeTimestamp)").load(path)
            .groupBy("topic", "storeHour").agg({"messages": "sum", "bytes": "sum"}))

    Partitions are ranges of segments, in the log's order. A time range is found by a binary search that tolerates a
    clock that was set back by up to a minute; where times fall by more, more is read, with a warning.

    Streams: an offset is the log offset of the next message. A message is read when it is whole: when another
    message follows, or when it has not changed for 0.2 s. Trigger.AvailableNow reads up to the end of the log at
    the start. After a restart from its checkpoint the query reads the same ranges again, so with an idempotent sink
    each message arrives exactly once.

        (spark.readStream.format("commitlog").option("startingOffsets", "earliest").load(path)
            .writeStream.option("checkpointLocation", "/data/cp").toTable("messages"))

    Conditions on topic, queueId, commitLogOffset and storeTimestamp are pushed down if
    spark.sql.python.filterPushdown.enabled is on: splits without matching rows are then not opened. It is off by
    default, because Spark (4.3.0) keeps the plan of the first query on the result of load() and uses it for all
    later queries, and for other branches of the same query: rows are missing without an error, unless each load()
    is used for one condition only. The options restrict the rows in the same way and are always correct. Without
    pushdown, too, the partitions of a load() are planned once: call load() again to see newer messages.
    """

    @classmethod
    def name(cls) -> str:
        return "commitlog"

    @short_errors()
    def schema(self) -> StructType:
        options = parse_options(self.options)
        types = _aggregate_types(options) if options.aggregate else COLUMN_TYPES
        return StructType([StructField(name, kind) for name, kind in types.items()])

    @short_errors()
    def reader(self, schema: StructType) -> DataSourceReader:
        from commitlogfs.pipeline.source.reader import CommitlogReader, PushingReader

        options = _located(parse_options(self.options, streaming=False))
        kind = PushingReader if _is_pushing() else CommitlogReader
        return kind(options, _split_reader(options, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from commitlogfs.pipeline.source.stream_reader import CommitlogStreamReader, RefusedStreamReader

        try:
            options = _located(parse_options(self.options, streaming=True))
            return CommitlogStreamReader(options, _row_reader(options, schema))
        except PipelineError as error:
            return RefusedStreamReader(error)


def _is_pushing() -> bool:
    """Whether Spark plans a reader that takes conditions: it does so in a separate worker, and refuses such a
    reader everywhere else."""
    return _PUSHDOWN_WORKER in sys.modules


def _located(options: ReadOptions) -> ReadOptions:
    """Absolute directories: an executor may have another working directory than the driver."""
    return replace(options, path=absolute_places(options.path))


def _aggregate_types(options: ReadOptions) -> dict[str, DataType]:
    keys: dict[str, DataType] = {key.column: _KEY_TYPES[key.kind] for key in options.aggregate}
    return keys | {"messages": LongType(), "bytes": LongType(), "first": TimestampType(), "last": TimestampType()}


def _split_reader(options: ReadOptions, schema: StructType) -> "RowReader | AggregateReader":
    from commitlogfs.pipeline.log.scanner import DamageMode
    from commitlogfs.pipeline.source.selection import RecordFilter

    if not options.aggregate:
        return _row_reader(options, schema)
    from commitlogfs.pipeline.source.aggregation import AggregateReader

    expected = StructType([StructField(name, kind) for name, kind in _aggregate_types(options).items()])
    if schema.simpleString() != expected.simpleString():
        raise OptionError("option aggregate decides the columns: leave schema() out, and choose columns afterwards")
    return AggregateReader(
        schema=_arrow_schema(schema),
        keys=options.aggregate,
        filter=RecordFilter.of(options),
        mode=DamageMode.PERMISSIVE if options.permissive else DamageMode.FAILFAST,
        fail_on_data_loss=options.fail_on_data_loss,
    )


def _row_reader(options: ReadOptions, schema: StructType) -> "RowReader":
    from commitlogfs.pipeline.log.scanner import DamageMode
    from commitlogfs.pipeline.source.rows import RowReader
    from commitlogfs.pipeline.source.selection import RecordFilter

    check_schema(schema)
    return RowReader(
        schema=_arrow_schema(schema),
        filter=RecordFilter.of(options),
        mode=DamageMode.PERMISSIVE if options.permissive else DamageMode.FAILFAST,
        check_crc=options.check_crc,
        fail_on_data_loss=options.fail_on_data_loss,
        bodies=options.bodies,
    )


def check_schema(schema: StructType) -> None:
    """Raises OptionError unless every column of `schema` is one of ours, has its type, and occurs once."""
    known = COLUMN_TYPES | _CHOSEN_ONLY
    seen = set()
    for field in schema.fields:
        if field.name not in known:
            by_lower_case = {name.lower(): name for name in known}
            close = difflib.get_close_matches(field.name.lower(), by_lower_case, n=1)
            hint = f"did you mean {by_lower_case[close[0]]}?" if close else f"the columns are {', '.join(known)}"
            raise OptionError(f"schema: column {field.name} is unknown; {hint}")
        expected = known[field.name]
        if field.dataType.simpleString() != expected.simpleString():
            raise OptionError(
                f"schema: column {field.name} has the type {field.dataType.simpleString()}; it must be "
                f"{expected.simpleString()}"
            )
        if field.name in seen:
            raise OptionError(f"schema: column {field.name} occurs twice; name it once")
        seen.add(field.name)


def _arrow_schema(schema: StructType) -> "pa.Schema":
    """`schema` as PySpark converts it to Arrow: batches must have exactly this schema."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")
