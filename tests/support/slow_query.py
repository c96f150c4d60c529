"""A query on a cluster, in its own process, with slow tasks: a test can end an executor while it runs.

    python -m support.slow_query MASTER LOG MARKS COLUMNS [KEY=VALUE ...]

COLUMNS: names, divided by commas. KEY=VALUE is an option of the source, or a setting of Spark if it begins with
"spark.". Each task leaves a file in the directory MARKS. Prints one line of JSON: the rows.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

_SLOW_S = 0.2


def start_query(
    master: str, log: Path, marks: Path, columns: Sequence[str], *settings: str
) -> "subprocess.Popen[str]":
    """The process, with its output in pipes."""
    names = ",".join(columns)
    return subprocess.Popen(
        [sys.executable, "-m", "support.slow_query", master, str(log), str(marks), names, *settings],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        start_new_session=True,
    )


def _main(master: str, log: str, marks: str, names: str, *rest: str) -> None:
    from commitlogfs.pipeline.source.session import session

    given = dict(text.split("=", 1) for text in rest)
    settings = {key: value for key, value in given.items() if key.startswith("spark.")}
    options = {key: value for key, value in given.items() if key not in settings}
    spark = session("slow query", master=master, settings={"spark.driver.memory": "768m", **settings})
    columns = names.split(",")

    def take_time(rows: Iterable[Any]) -> Iterator[list[Any]]:
        yield from ([row[name] for name in columns] for row in rows)
        time.sleep(_SLOW_S)
        (Path(marks) / f"{os.getpid()}.{time.monotonic_ns()}").touch()

    schema = {} if "aggregate" in options else {"schema": "commitLogOffset long, text string"}
    frame = spark.read.format("commitlog").options(**options).load(log, **schema)
    print(json.dumps(frame.rdd.mapPartitions(take_time).collect()))
    spark.stop()


if __name__ == "__main__":
    _main(*sys.argv[1:])
