"""RocketMQ's real choice among several commitlog paths, as an oracle for ours."""

from collections.abc import Iterable
from typing import NamedTuple

from commitlogfs.bench.rocketmq.artifacts import Distribution
from commitlogfs.bench.rocketmq.oracle import Oracle


class PathChoice(NamedTuple):
    """Full paths of the segment to be made now and of the one made ahead."""

    next_file: str
    next_next_file: str


class MultiPathOracle(Oracle):
    """MultiPathMappedFileQueue in one JVM; makes no files, so any size works."""

    def __init__(self, distribution: Distribution) -> None:
        super().__init__(distribution, "commitlogfs.MultiPathOracle")

    def choose(
        self,
        paths: Iterable[str],
        create_offset: int,
        *,
        segment_size_bytes: int,
        readonly: Iterable[str] = (),
        full: Iterable[str] = (),
    ) -> PathChoice:
        """Where the broker would put the segment at `create_offset`; Raises WorkloadFailedError if it throws."""
        lists = [",".join(part) for part in (paths, readonly, full)]
        return PathChoice(*self.ask(str(segment_size_bytes), *lists, str(create_offset)))
