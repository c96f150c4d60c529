"""RocketMQ's real judgement of how full its commitlog is, as an oracle for what statfs makes of it."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from commitlogfs.bench.rocketmq.artifacts import Distribution
from commitlogfs.bench.rocketmq.oracle import Oracle


class Judgement(NamedTuple):
    """What CleanCommitLogService#isSpaceToDelete has decided."""

    delete: bool
    forcibly: bool
    full: bool
    """The store refuses messages: a flag with a memory."""


class CleaningOracle(Oracle):
    """CleanCommitLogService in one JVM, over stores that are never loaded. Deletes nothing."""

    def __init__(
        self,
        distribution: Distribution,
        stores: Sequence[tuple[Path, Sequence[Path]]],
        ratios: tuple[int, int, int] = (75, 85, 90),
    ) -> None:
        """`stores`: the root folder and the commitlog folders of each; `ratios`: clean, force, full."""
        arguments = [str(ratio) for ratio in ratios]
        for root, folders in stores:
            arguments += [str(root), ",".join(map(str, folders))]
        super().__init__(distribution, "commitlogfs.CleaningOracle", *arguments)

    def look(self) -> list[Judgement]:
        """What each store's service decides now. WorkloadFailedError when it throws."""
        flags = [word == "true" for word in self.ask()]
        return [Judgement(*flags[at : at + 3]) for at in range(0, len(flags), 3)]
