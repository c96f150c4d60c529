"""A wheel of this project, installed elsewhere: Spark finds the source by itself, with no registration."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from support.messages import messages
from support.written_logs import write_log

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]

QUERY = """
import json, sys
from pyspark.sql import SparkSession
settings = {"spark.ui.enabled": "false", "spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "768m", "spark.local.dir": sys.argv[2]}
builder = SparkSession.builder.master("local[1]")
for key, value in settings.items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
rows = spark.read.format("commitlog").schema("commitLogOffset long").load(sys.argv[1])
import commitlogfs.pipeline.source.data_source
print(json.dumps([rows.count(), commitlogfs.pipeline.source.data_source.__file__]))
spark.stop()
"""


def test_spark_finds_it(workdir: Path) -> None:
    log = write_log(workdir / "log", 1 << 16, messages(500))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    wheels = workdir / "wheels"
    built = subprocess.run(
        [*pip, "wheel", "--no-deps", "--wheel-dir", str(wheels), str(sources(workdir))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = wheels.iterdir()
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "pyspark_commitlog/__init__.py" in names
    assert "commitlogfs/pipeline/log4j2.properties" in names
    target = workdir / "installed"
    subprocess.run([*pip, "install", "--no-deps", "--target", str(target), str(wheel)], check=True)

    environment = {**os.environ, "PYTHONPATH": str(target), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, "-c", QUERY, str(log.folder), str(workdir / "spark")],
        capture_output=True,
        text=True,
        env=environment,
        cwd=workdir,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    count, where = json.loads(done.stdout.splitlines()[-1])
    assert count == 500
    assert Path(where).is_relative_to(target), "not the sources of this checkout"


def sources(workdir: Path) -> Path:
    """A copy of what a wheel is built from: building leaves folders in the tree."""
    copy = workdir / "sources"
    copy.mkdir()
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, copy)
    for name in ("bench", "fusefs", "mount", "pipeline", "pyspark_commitlog", "store"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    return copy
