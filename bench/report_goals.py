"""The goals of this benchmark that are ratios of two targets."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from commitlogfs.bench import broker_bench
from commitlogfs.bench.beside_broker import FLUSHES, Work
from commitlogfs.bench.datapath_rounds import Series
from commitlogfs.bench.moves.sending import MOVES
from commitlogfs.bench.scrub import reading
from commitlogfs.bench.scrub.sending import SCRUBS
from commitlogfs.bench.targets import MERGERFS, MOUNT, NATIVE

DATA_FLOOR, BROKER_FLOOR = 0.95, 0.97
MOVE_FLOOR, MOVE_P99_CEILING = 0.95, 1.2
SCRUB_FLOOR, SCRUB_P99_CEILING = 0.9, 1.05
_AGAINST_NATIVE = ("append-sync", "append", "read-cold", "read-warm", "random-cold")
_AGAINST_MERGERFS = {"append-sync": 2.0, "append": 2.0, "read-cold": 1.0, "read-warm": 1.0, "random-cold": 1.0}
_BROKER = (broker_bench.SEND_ASYNC, broker_bench.SEND_SYNC, broker_bench.CONSUME)


@dataclass(frozen=True, slots=True)
class Goal:
    """A median ratio that must not be below `floor`, or not above `ceiling`. `ratio` is None if it was not
    measured."""

    workload: str
    against: str
    ratio: float | None
    floor: float | None = None
    ceiling: float | None = None
    target: str = MOUNT

    @property
    def required(self) -> str:
        return f">= {self.floor:g}" if self.floor is not None else f"<= {self.ceiling:g}"

    @property
    def verdict(self) -> str:
        if self.ratio is None:
            return "not measured"
        missed = 0.0
        if self.floor is not None:
            missed = (self.floor - self.ratio) / self.floor
        elif self.ceiling is not None:
            missed = (self.ratio - self.ceiling) / self.ceiling
        return f"missed by {missed:.1%}" if missed > 0 else "met"

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "verdict": self.verdict}


def goals(series: Sequence[Series]) -> list[Goal]:
    """Goals of the workloads that ran: for the mount with passthrough, for moves and for scrubs."""
    ran = {one.workload: one for one in series}
    wanted = [(name, NATIVE, DATA_FLOOR) for name in _AGAINST_NATIVE]
    wanted += [(name, MERGERFS, floor) for name, floor in _AGAINST_MERGERFS.items()]
    wanted += [(name, NATIVE, BROKER_FLOOR) for name, _ in _BROKER]
    found = [
        Goal(name, against, ran[name].ratio(MOUNT, against), floor)
        for name, against, floor in wanted
        if name in ran
    ]
    for flush in FLUSHES:
        found += _beside(ran, MOVES, MOVES.rate(flush), floor=MOVE_FLOOR)
    for work, ceiling in ((MOVES, MOVE_P99_CEILING), (SCRUBS, SCRUB_P99_CEILING)):
        for flush in FLUSHES:
            found += _beside(ran, work, work.p99(flush), ceiling=ceiling)
    if reading.READ in ran:
        ratio = ran[reading.READ].ratio(reading.SCRUB)
        found.append(Goal(reading.READ, reading.FIO, ratio, SCRUB_FLOOR, target=reading.SCRUB))
    return found


def _beside(ran: Mapping[str, Series], work: Work, workload: str, **limit: float) -> list[Goal]:
    if workload not in ran:
        return []
    return [Goal(workload, work.still, ran[workload].ratio(work.working), target=work.working, **limit)]
