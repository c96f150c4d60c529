"""Figures of `make bench-pipeline`, and its goals."""

from dataclasses import asdict, dataclass
from typing import Any

from commitlogfs.bench.figures import median
from commitlogfs.bench.pipeline.counting import QueryRates, WorkerRates
from commitlogfs.bench.pipeline.decoding import DecodeFigures
from commitlogfs.bench.pipeline.rebuilding import RebuildFigures
from commitlogfs.bench.pipeline.synthetic_log import SyntheticLog


@dataclass(frozen=True, slots=True)
class Goal:
    """A ratio and its required value (design.md)."""

    name: str
    ratio: float
    wanted: float

    @property
    def is_met(self) -> bool:
        return self.ratio >= self.wanted


@dataclass(frozen=True, slots=True)
class PipelineFigures:
    log: SyntheticLog
    cores: int
    first_use: tuple[float, float]
    """Seconds without and with compiled code."""
    decoding: DecodeFigures
    query: QueryRates
    workers: WorkerRates
    rebuilding: RebuildFigures

    def rates(self) -> dict[str, list[float]]:
        """Messages per second of each round."""
        return {
            "decode, one core: commitlogfs": self.decoding.ours,
            "decode, one core: MessageDecoder": self.decoding.decoder,
            f"count by topic, Spark on {self.cores} cores: query": self.query.narrow,
            f"count by topic, Spark on {self.cores} cores: query, all columns": self.query.wide,
            f"count by topic, Spark on {self.cores} cores: stats": self.workers.job,
            f"count by topic, Spark on {self.cores} cores: aggregate": self.workers.aggregate,
            f"rebuild, Spark on {self.cores} cores": self.rebuilding.ours,
            "rebuild, by the broker": self.rebuilding.broker,
        }

    def goals(self) -> list[Goal]:
        ours, decoder = median(self.decoding.ours), median(self.decoding.decoder)
        bare = f"{self.cores} bare decoders"
        return [
            Goal("decode / MessageDecoder", ours / decoder, 2.0),
            Goal(f"count by topic, query / {bare}", median(self.query.narrow) / (self.cores * ours), 0.6),
            Goal(f"count by topic, stats / {bare}", median(self.workers.job) / (self.cores * ours), 0.6),
            Goal(
                "count by topic, aggregate / stats", median(self.workers.aggregate) / median(self.workers.job), 0.9
            ),
            Goal("rebuild / broker", median(self.rebuilding.ours) / median(self.rebuilding.broker), 3.0),
        ]

    def as_json(self) -> dict[str, Any]:
        return {
            "messages": self.log.messages,
            "bytes": self.log.bytes,
            "cores": self.cores,
            "messagesPerSecond": {
                name: [round(value) for value in values] for name, values in self.rates().items()
            },
            "workerMiB": round(self.rebuilding.worker_mib, 1),
            "firstUseSeconds": [round(value, 2) for value in self.first_use],
            "goals": [{**asdict(goal), "met": goal.is_met} for goal in self.goals()],
        }
