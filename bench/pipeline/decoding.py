"""Decodes a whole log in the page cache on one core: our columns, and RocketMQ's MessageDecoder."""

import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from commitlogfs.bench.pipeline.errors import WrongResultError
from commitlogfs.bench.pipeline.synthetic_log import SyntheticLog
from commitlogfs.bench.rocketmq import Distribution
from commitlogfs.bench.rocketmq.process import java_command
from commitlogfs.pipeline.log.scanner import Chunk, scan_split
from commitlogfs.pipeline.log.segments import list_segments
from commitlogfs.pipeline.log.splits import plan_splits
from commitlogfs.pipeline.log.tail import find_end
from commitlogfs.pipeline.source.columns import COLUMNS, Projection

_SHORTCUTS = {"tags", "keys", "uniqKey", "transactionId"}
"""Columns with single properties, which `properties` contains: MessageDecoder does not extract them either."""
_JVM = ("-Xms512m", "-Xmx512m", "-XX:+UseSerialGC")
_WARMING_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class DecodeFigures:
    """Messages per second, one value per round; the rounds of both are interleaved."""

    ours: list[float]
    decoder: list[float]


def measure_decoding(log: SyntheticLog, distribution: Distribution, rounds: int) -> DecodeFigures:
    """Decode every header field, topic, properties and body; no CRC. Raises WrongResultError."""
    figures = DecodeFigures([], [])
    decode_once(log)
    for _ in range(rounds):
        figures.ours.append(log.messages / decode_once(log))
        figures.decoder.append(_run_decoder(log, distribution))
    return figures


def decode_once(log: SyntheticLog) -> float:
    """Seconds of a worker's part: the driver finds the log's end, once."""
    projection = Projection([name for name in COLUMNS.names if name not in _SHORTCUTS])
    listing = list_segments(str(log.directory))
    end = find_end(listing, settle_s=0)
    messages = 0
    started = time.perf_counter()
    for split in plan_splits(listing, end, split_size=log.segment_size):
        for chunk in scan_split(split):
            if isinstance(chunk, Chunk):
                messages += projection.to_batch(chunk).num_rows
    seconds = time.perf_counter() - started
    _require_count(messages, log)
    return seconds


def _run_decoder(log: SyntheticLog, distribution: Distribution) -> float:
    """Messages per second of the last round of a warmed-up JVM."""
    with tempfile.TemporaryDirectory() as home:
        command = java_command(
            distribution,
            "DecodeSpeed",
            *(str(log.directory), str(_WARMING_ROUNDS + 1)),
            jvm=_JVM,
            user_home=Path(home),
        )
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    lines = done.stdout.split("\n")
    if done.returncode or len(lines) <= _WARMING_ROUNDS:
        raise WrongResultError(f"MessageDecoder failed: {done.stderr.strip()[-500:]}")
    messages, nanoseconds, _ = map(int, lines[_WARMING_ROUNDS].split())
    _require_count(messages, log)
    return messages * 1e9 / nanoseconds


def _require_count(messages: int, log: SyntheticLog) -> None:
    if messages != log.messages:
        raise WrongResultError(f"{messages:,} messages were decoded of {log.messages:,}")


def measure_first_use(work: Path) -> tuple[float, float]:
    """Seconds that a new process takes for one small log: without compiled code, and the second time."""
    code = (
        "import sys; from pathlib import Path; from commitlogfs.bench.pipeline.decoding import decode_once;"
        "from commitlogfs.bench.pipeline.synthetic_log import write_log;"
        "decode_once(write_log(Path(sys.argv[1]), 1000, 1 << 20, lambda text: None))"
    )
    seconds = []
    for number in range(2):
        started = time.perf_counter()
        subprocess.run(
            [sys.executable, "-c", code, str(work / f"small-{number}")],
            env={"NUMBA_CACHE_DIR": str(work / "compiled"), "PATH": "/usr/bin:/bin"},
            check=True,
            timeout=600,
        )
        seconds.append(time.perf_counter() - started)
    return seconds[0], seconds[1]
