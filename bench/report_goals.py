"""The goals of design.md that this benchmark measures."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from commitlogfs.bench import broker_bench
from commitlogfs.bench.datapath_rounds import Series
from commitlogfs.bench.targets import MERGERFS, MOUNT, NATIVE

DATA_FLOOR, BROKER_FLOOR = 0.95, 0.97
_AGAINST_NATIVE = ("append-sync", "append", "read-cold", "read-warm", "random-cold")
_AGAINST_MERGERFS = {"append-sync": 2.0, "append": 2.0, "read-cold": 1.0, "read-warm": 1.0, "random-cold": 1.0}
_BROKER = (broker_bench.SEND_ASYNC, broker_bench.SEND_SYNC, broker_bench.CONSUME)


@dataclass(frozen=True, slots=True)
class Goal:
    """A median ratio that must not be below `floor`. `ratio` is None if it was not measured."""

    workload: str
    against: str
    ratio: float | None
    floor: float

    @property
    def verdict(self) -> str:
        if self.ratio is None:
            return "not measured"
        return "met" if self.ratio >= self.floor else f"missed by {(self.floor - self.ratio) / self.floor:.1%}"

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "verdict": self.verdict}


def goals(series: Sequence[Series]) -> list[Goal]:
    """Goals of the workloads that ran, for the mount with passthrough."""
    ran = {one.workload: one for one in series}
    wanted = [(name, NATIVE, DATA_FLOOR) for name in _AGAINST_NATIVE]
    wanted += [(name, MERGERFS, floor) for name, floor in _AGAINST_MERGERFS.items()]
    wanted += [(name, NATIVE, BROKER_FLOOR) for name, _ in _BROKER]
    return [
        Goal(name, against, ran[name].ratio(MOUNT, against), floor)
        for name, against, floor in wanted
        if name in ran
    ]
