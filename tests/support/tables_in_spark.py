"""Spark 4.1 beside the pipeline's own Spark: the newest one for which Iceberg and Delta Lake have readers.

It lives in a virtual environment of its own in the cache directory, with the jars of the readers, and is installed
once: from PyPI by pip, from Maven Central by mvn.
"""

import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import venv
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

SPARK: Final = "4.1.4"
_JARS: Final = (
    "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
    "org.xerial:sqlite-jdbc:3.50.3.0",
    "io.delta:delta-spark_4.1_2.13:4.2.0",
    "io.delta:delta-storage:4.2.0",
)
_EXTENSIONS: Final = (
    "io.delta.sql.DeltaSparkSessionExtension",
    "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
)
_CACHE: Final = Path("~/.cache/commitlogfs").expanduser() / f"tables-in-spark-{SPARK}"
_INSTALL_S: Final = 900
_QUERY_S: Final = 240

_PROGRAM: Final = """
import json, sys
from pyspark.sql import SparkSession
settings, queries = map(json.loads, sys.argv[1:])
builder = SparkSession.builder.master("local[2]")
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
print(json.dumps([[list(row) for row in spark.sql(query).collect()] for query in queries]))
spark.stop()
"""


def query(scratch: Path, catalog: Path, warehouse: Path, *queries: str) -> list[list[list[Any]]]:
    """The rows of each query, for which Spark is started. `scratch` is made. `lake` is the Iceberg catalog in this
    file of SQLite; Delta tables are named by path.

    Skips the test if Spark cannot be installed.
    """
    installed = _install()
    scratch.mkdir()
    settings = {
        "spark.jars": ",".join(map(str, sorted((installed / "jars").glob("*.jar")))),
        "spark.local.dir": str(scratch),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(scratch / "spark-warehouse"),
        "spark.sql.extensions": ",".join(_EXTENSIONS),
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "jdbc",
        "spark.sql.catalog.lake.uri": f"jdbc:sqlite:{catalog}",
        "spark.sql.catalog.lake.warehouse": f"file://{warehouse}",
    }
    ran = subprocess.run(
        [str(installed / "venv" / "bin" / "python"), "-c", _PROGRAM, json.dumps(settings), json.dumps(queries)],
        env=_environment(),
        cwd=scratch,
        capture_output=True,
        text=True,
        timeout=_QUERY_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    found: list[list[list[Any]]] = json.loads(ran.stdout.splitlines()[-1])
    return found


def _environment() -> Mapping[str, str]:
    """Without what points at the pipeline's own Spark or Python."""
    theirs = ("SPARK_", "PYSPARK_", "PYTHON")
    return {name: value for name, value in os.environ.items() if not name.startswith(theirs)}


def _install() -> Path:
    """The directory with `venv` and `jars`; it has its name only when it is complete."""
    _CACHE.parent.mkdir(parents=True, exist_ok=True)
    with _CACHE.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _CACHE.exists():
            if shutil.which("mvn") is None:
                pytest.skip("no mvn, which fetches the readers of Iceberg and Delta Lake for Spark")
            scratch = Path(tempfile.mkdtemp(dir=_CACHE.parent))
            try:
                _fill(scratch)
            except subprocess.SubprocessError as error:
                shutil.rmtree(scratch)
                pytest.skip(f"Spark {SPARK} with the readers of Iceberg and Delta Lake cannot be fetched: {error}")
            scratch.rename(_CACHE)
    return _CACHE


def _fill(directory: Path) -> None:
    venv.create(directory / "venv", with_pip=True)
    python = directory / "venv" / "bin" / "python"
    lines = [[str(python), "-m", "pip", "install", "--quiet", f"pyspark=={SPARK}"]]
    lines += [
        ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={jar}", f"-DoutputDirectory={directory / 'jars'}"]
        for jar in _JARS
    ]
    for line in lines:
        subprocess.run(line, check=True, capture_output=True, timeout=_INSTALL_S)
