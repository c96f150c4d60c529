"""The broker's own topics: those that RocketMQ reserves (TopicValidator#isSystemTopic).

Retry and dead-letter topics belong to consumer groups, not to the broker. Topics that are named after a broker's
settings (its cluster, its name, `CLUSTER_REPLY_TOPIC`, another msgTraceTopicName) are its own, too, but a log does
not show these names.
"""

from typing import Final

from commitlogfs.pipeline.broker.dispatch import SCHEDULE_TOPIC

SYSTEM_PREFIX: Final = b"rmq_sys_"
"""Each topic with this prefix is the broker's own."""

HALF_TOPICS_SINCE: Final = {
    b"RMQ_SYS_TRANS_HALF_TOPIC": (4, 3, 0),
    b"RMQ_SYS_TRANS_OP_HALF_TOPIC": (4, 3, 0),
    b"RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC": (5, 4, 0),
    b"RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC": (5, 4, 0),
}
"""Topics of undecided transactions, and of the decisions (TransactionalMessageUtil), with the first version of
RocketMQ that has each. Those of RocksDB are for transRocksDBEnable."""

SYSTEM_TOPICS_SINCE: Final = {
    b"TBW102": (4, 0, 0),
    SCHEDULE_TOPIC.encode(): (4, 0, 0),
    b"BenchmarkTest": (4, 0, 0),
    b"SELF_TEST_TOPIC": (4, 0, 0),
    b"OFFSET_MOVED_EVENT": (4, 0, 0),
    b"RMQ_SYS_TRACE_TOPIC": (4, 4, 0),
    b"TRANS_CHECK_MAX_TIME_TOPIC": (4, 5, 2),
    b"CHECKPOINT_TOPIC": (5, 2, 0),
}
"""The other ones, with the first version of RocketMQ that has each."""

HALF_TOPICS: Final = frozenset(HALF_TOPICS_SINCE)
SYSTEM_TOPICS: Final = frozenset(SYSTEM_TOPICS_SINCE)
"""The names of all versions: a log does not show which version has written it."""
