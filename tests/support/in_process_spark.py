"""The part of Spark that jobs use, in this process: partitions are lists, tasks run one after the other."""

import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import Any


class InProcessData:
    """An RDD."""

    def __init__(self, partitions: Iterable[Iterable[Any]]) -> None:
        self._partitions = [list(part) for part in partitions]

    def mapPartitions(self, work: Callable[[Iterator[Any]], Iterable[Any]]) -> "InProcessData":  # noqa: N802
        # Pickled, as on the way to a worker; each partition gets a copy of its own.
        packed = pickle.dumps(work)
        return InProcessData(pickle.loads(packed)(iter(part)) for part in self._partitions)  # noqa: S301

    def mapPartitionsWithIndex(  # noqa: N802
        self, work: Callable[[int, Iterator[Any]], Iterable[Any]]
    ) -> "InProcessData":
        packed = pickle.dumps(work)
        return InProcessData(
            pickle.loads(packed)(number, iter(part))  # noqa: S301
            for number, part in enumerate(self._partitions)
        )

    def map(self, work: Callable[[Any], Any]) -> "InProcessData":
        return InProcessData(map(work, part) for part in self._partitions)

    def repartitionAndSortWithinPartitions(  # noqa: N802
        self, count: int, partition_of: Callable[[Any], int]
    ) -> "InProcessData":
        partitions: list[list[Any]] = [[] for _ in range(count)]
        for part in self._partitions:
            for pair in part:
                partitions[partition_of(pair[0]) % count].append(pair)
        return InProcessData(sorted(part, key=lambda pair: pair[0]) for part in partitions)

    def reduceByKey(self, merge: Callable[[Any, Any], Any], count: int) -> "InProcessData":  # noqa: N802
        partitions: list[dict[Any, Any]] = [{} for _ in range(count)]
        for part in self._partitions:
            for key, value in part:
                merged = partitions[hash(key) % count]
                merged[key] = merge(merged[key], value) if key in merged else value
        return InProcessData(part.items() for part in partitions)

    def persist(self, _: object) -> "InProcessData":
        """Nothing here is computed twice."""
        return self

    def unpersist(self) -> None:
        """There is no cache to leave."""

    def collect(self) -> list[Any]:
        return [item for part in self._partitions for item in part]


class InProcessContext:
    defaultParallelism = 2  # noqa: N815

    def parallelize(self, items: Iterable[Any], count: int) -> InProcessData:
        whole = list(items)
        return InProcessData(whole[number::count] for number in range(count))


class InProcessSpark:
    """A SparkSession for rebuild, audit, export and stats, if nobody asks for their progress."""

    sparkContext = InProcessContext()  # noqa: N815
