"""Wall and CPU time of each verb on a log: its start on a small one, core-hours per TB on a large one.

    python -m commitlogfs.bench.pipeline.verb_costs [--messages 12000000] [--verb stats ...] [--runs 1]

With `--messages 1000` the start of a verb is nearly all of it. The CPU time is that of all processes of a verb.
"""

import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

import psutil
import typer

from commitlogfs.bench import sweep
from commitlogfs.bench.pipeline.synthetic_log import SyntheticLog, write_log

_EVERY_S: Final = 0.1
_TB: Final = 10**12
_HOUR_S: Final = 3600
_VERBS: Final = {
    "stats": ("stats", "LOG"),
    "audit": ("audit", "LOG"),
    "export": ("export", "LOG", "OUTPUT"),
    "rebuild": ("rebuild", "LOG", "--output", "OUTPUT"),
}


def main(
    messages: Annotated[int, typer.Option(min=1000, help="Messages of 400 bytes in the log.")] = 12_000_000,
    verb: Annotated[list[str] | None, typer.Option(help="Verbs to measure; default: all.")] = None,
    runs: Annotated[int, typer.Option(min=1, help="Runs of each verb, in turn.")] = 1,
    cores: Annotated[int, typer.Option(min=1, help="Cores that Spark may use.")] = 2,
    directory: Annotated[Path | None, typer.Option(help="Working directory. Default: $TMPDIR or /var/tmp.")] = None,
) -> None:
    """Measure the verbs of commitlogfs-pipeline as whole processes."""
    with sweep.run("bench", lambda text: print(text, file=sys.stderr), directory) as work:
        log = write_log(work / "log", messages, min(256 << 20, max(1 << 20, messages * 512)), lambda _: None)
        print(f"{log.messages:,} messages, {log.bytes >> 20:,} MiB, {cores} cores")
        for _ in range(runs):
            for name in verb or _VERBS:
                wall_s, cpu_s = _measure(name, log, work / "output", cores)
                core_hours = cpu_s / _HOUR_S * _TB / log.bytes
                costs = f"{cpu_s:.1f} s of CPU, {core_hours:.2f} core-hours per TB"
                print(f"{name}: {wall_s:.1f} s, {costs}", flush=True)


def _measure(name: str, log: SyntheticLog, output: Path, cores: int) -> tuple[float, float]:
    """Seconds, and seconds of CPU of the verb and all its descendants, as last seen of each (workers of Spark are
    not waited for by any process, so the kernel does not add up their times)."""
    places = {"LOG": str(log.directory), "OUTPUT": str(output)}
    words = [places.get(word, word) for word in _VERBS[name]]
    command = [sys.executable, "-m", "commitlogfs.pipeline", *words, "--master", f"local[{cores}]"]
    started = time.perf_counter()
    job = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    members = {job.pid: psutil.Process(job.pid)}
    times: dict[int, float] = {}
    while job.poll() is None:
        _sample(members[job.pid], members, times)
        time.sleep(_EVERY_S)
    seconds = time.perf_counter() - started
    psutil.wait_procs(list(members.values()), timeout=30)
    if job.returncode:
        raise SystemExit(f"{name} failed with status {job.returncode}")
    shutil.rmtree(output, ignore_errors=True)
    return seconds, sum(times.values())


def _sample(job: psutil.Process, members: dict[int, psutil.Process], times: dict[int, float]) -> None:
    with suppress(psutil.Error):
        members.update((process.pid, process) for process in job.children(recursive=True))
    for pid, process in members.items():
        try:
            used = process.cpu_times()
            times[pid] = used.user + used.system
        except psutil.Error:
            continue


if __name__ == "__main__":
    typer.run(main)
