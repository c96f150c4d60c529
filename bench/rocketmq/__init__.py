"""Drives an unmodified RocketMQ from Maven Central: name server, broker, producers, consumers.

Standalone: imports no other part of this project. Needs java, javac (17) and, for the first fetch, mvn.
All traffic stays on 127.0.0.1.

    distribution = fetch("5.5.0")
    with NameServer(distribution, work_dir) as names, Broker(distribution, names, work_dir) as broker:
        send(distribution, names.address, "Topic", count=1000)
        consume(distribution, names.address, "Topic", expect=1000)
"""

from commitlogfs.bench.rocketmq.artifacts import STORE_VERSIONS, VERSIONS, Distribution, fetch
from commitlogfs.bench.rocketmq.bodies import make_body
from commitlogfs.bench.rocketmq.broker import Broker
from commitlogfs.bench.rocketmq.errors import (
    ArtifactsUnavailableError,
    RocketmqError,
    StartFailedError,
    StopTimeoutError,
    WorkloadFailedError,
)
from commitlogfs.bench.rocketmq.mixed import MULTI_DISPATCH, MixedResult, make_inner_topic, send_mixed
from commitlogfs.bench.rocketmq.mqadmin import QueriedMessage, mqadmin, query_by_id, query_by_key
from commitlogfs.bench.rocketmq.multipath import MultiPathOracle, PathChoice
from commitlogfs.bench.rocketmq.nameserver import NameServer
from commitlogfs.bench.rocketmq.store_writer import Settings, StoreRun, write_stores
from commitlogfs.bench.rocketmq.texts import COMPRESSIONS, Digest, read_digests, send_texts
from commitlogfs.bench.rocketmq.workload import (
    AckedMessage,
    BatchSender,
    ConsumeResult,
    FirstMessage,
    ReceivedMessage,
    Sender,
    SendResult,
    consume,
    read_acked,
    read_received,
    send,
    start_sender,
)

__all__ = [
    "COMPRESSIONS",
    "MULTI_DISPATCH",
    "STORE_VERSIONS",
    "VERSIONS",
    "AckedMessage",
    "ArtifactsUnavailableError",
    "BatchSender",
    "Broker",
    "ConsumeResult",
    "Digest",
    "Distribution",
    "FirstMessage",
    "MixedResult",
    "MultiPathOracle",
    "NameServer",
    "PathChoice",
    "QueriedMessage",
    "ReceivedMessage",
    "RocketmqError",
    "SendResult",
    "Sender",
    "Settings",
    "StartFailedError",
    "StopTimeoutError",
    "StoreRun",
    "WorkloadFailedError",
    "consume",
    "fetch",
    "make_body",
    "make_inner_topic",
    "mqadmin",
    "query_by_id",
    "query_by_key",
    "read_acked",
    "read_digests",
    "read_received",
    "send",
    "send_mixed",
    "send_texts",
    "start_sender",
    "write_stores",
]
