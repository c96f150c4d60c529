"""RocketMQ's own decision about how full its commitlog is, as an oracle for statfs."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from commitlogfs.bench.rocketmq.artifacts import Distribution
from commitlogfs.bench.rocketmq.oracle import Oracle


class Judgement(NamedTuple):
    """Decision of CleanCommitLogService#isSpaceToDelete."""

    delete: bool
    forcibly: bool
    full: bool
    """Whether the store refuses messages; the flag depends on earlier decisions."""


class CleaningOracle(Oracle):
    """CleanCommitLogService in one JVM, with stores that are not loaded. Deletes nothing."""

    def __init__(
        self,
        distribution: Distribution,
        stores: Sequence[tuple[Path, Sequence[Path]]],
        ratios: tuple[int, int, int] = (75, 85, 90),
    ) -> None:
        """`stores`: the root directory and the commitlog directories of each; `ratios`: clean, force, full."""
        arguments = [str(ratio) for ratio in ratios]
        for root, directories in stores:
            arguments += [str(root), ",".join(map(str, directories))]
        super().__init__(distribution, "commitlogfs.CleaningOracle", *arguments)

    def look(self) -> list[Judgement]:
        """The decision of each store's service. Raises WorkloadFailedError if it throws."""
        flags = [word == "true" for word in self.ask()]
        return [Judgement(*flags[at : at + 3]) for at in range(0, len(flags), 3)]
