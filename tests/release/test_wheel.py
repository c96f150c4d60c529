"""Source archive and wheel: what they contain, and the wheel installed elsewhere."""

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.messages import messages
from support.releases import SOURCE, Release, build_release
from support.written_logs import write_log

from commitlogfs.bench import sweep

pytestmark = pytest.mark.full

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
SHIPPED = {
    "": ["LICENSE", "README.md", "CHANGELOG.md", "SECURITY.md"],
    "docs": [path.name for path in (SOURCE / "docs").glob("*.md")],
    "docs/runbooks": [path.name for path in (SOURCE / "docs/runbooks").glob("*.md")],
    "docs/reference": [path.name for path in (SOURCE / "docs/reference").glob("*.md")],
    "systemd": [path.name for path in (SOURCE / "systemd").iterdir() if path.is_file()],
    "systemd/broker.service.d": ["commitlogfs.conf"],
    "scripts": ["manual.py"],
}
"""Directory of the tree -> files that users need beside the programs."""
INSTALLED_IN = {
    "": "doc/commitlogfs",
    "docs": "doc/commitlogfs/docs",
    "docs/runbooks": "doc/commitlogfs/docs/runbooks",
    "docs/reference": "doc/commitlogfs/docs/reference",
    "systemd": "commitlogfs/systemd",
    "systemd/broker.service.d": "commitlogfs/systemd/broker.service.d",
    "scripts": "commitlogfs",
}
"""Directory of the tree -> directory below `share` of an installation."""
CODE = {
    "pyspark_commitlog/__init__.py",
    "commitlogfs/console/py.typed",
    "commitlogfs/pipeline/source/log4j2.properties",
    "commitlogfs/bench/recovery_floor.c",
}
PACKAGES = ("bench", "console", "fusefs", "mount", "pipeline", "store")


def modules() -> set[str]:
    return {str(path.relative_to(SOURCE)) for directory in PACKAGES for path in (SOURCE / directory).rglob("*.py")}


@pytest.fixture(scope="module")
def release(base_directory: Path) -> Iterator[Release]:
    directory = base_directory / "release"
    directory.mkdir()
    yield build_release(directory)
    sweep.remove_tree(directory)


@pytest.fixture(scope="module")
def installed(release: Release, base_directory: Path) -> Path:
    """The directory that the wheel is installed in, without its dependencies."""
    target = base_directory / "release" / "installed"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "install", "--no-deps", "--target", str(target), str(release.wheel)], check=True)
    return target


def test_wheel_has_units_logrotate_and_docs(release: Release) -> None:
    with zipfile.ZipFile(release.wheel) as wheel:
        names = {name.partition(".data/data/share/")[2] for name in wheel.namelist()}
    expected = {f"{INSTALLED_IN[directory]}/{file}" for directory, files in SHIPPED.items() for file in files}
    assert expected - names == set()


def test_wheel_has_every_module_and_the_licence(release: Release) -> None:
    with zipfile.ZipFile(release.wheel) as wheel:
        names = set(wheel.namelist())
    assert {f"commitlogfs/{module}" for module in modules()} | CODE <= names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert not [name for name in names if name.startswith(("tests/", "build/", "commitlogfs/tests/"))]


def test_archive_has_sources_units_and_docs(release: Release) -> None:
    with tarfile.open(release.archive) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    expected = {f"{directory}/{file}".lstrip("/") for directory, files in SHIPPED.items() for file in files}
    expected |= modules() | {"CONTRIBUTING.md", "Makefile", "scripts/setup", "store/_syscalls.c"}
    assert expected - names == set()
    assert not [name for name in names if name.endswith((".so", ".pyc"))]


def test_installed_unit_script_can_be_executed(release: Release, installed: Path) -> None:
    assert os.access(installed / "share/commitlogfs/systemd/commitlogfs-unit", os.X_OK)


def test_spark_finds_the_source_of_an_installed_wheel(installed: Path, workdir: Path) -> None:
    log = write_log(workdir / "log", 1 << 16, messages(500))
    environment = {**os.environ, "PYTHONPATH": str(installed), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, "-c", QUERY, str(log.directory), str(workdir / "spark")],
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
    assert Path(where).is_relative_to(installed), "not the sources of this checkout"
