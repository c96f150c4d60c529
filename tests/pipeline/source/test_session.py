"""Spark as our own jobs start it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json, os
from commitlogfs.pipeline.source.session import job_context, session
spark = START
jvm = spark.sparkContext._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()
kept = spark.sparkContext.parallelize([0], 1).map(lambda _: os.environ["MALLOC_TRIM_THRESHOLD_"]).collect()
print(json.dumps([list(jvm), kept, os.environ["SPARK_SUBMIT_OPTS"]]))
spark.stop()
"""


STARTS = {
    "session": 'session("tests", master="local[1]", in_workers=True, settings={"spark.driver.memory": "512m"})',
    "job_context": 'job_context("tests", master="local[1]")',
}


@pytest.mark.full
@pytest.mark.parametrize("start", STARTS)
def test_a_local_jvm_for_our_jobs_compiles_quickly_and_has_the_users_options(tmp_path: Path, start: str) -> None:
    (tmp_path / "spark-defaults.conf").write_text("spark.driver.defaultJavaOptions -Dadmin=yes\n")
    mine = "-XX:-UsePerfData -Dmine=yes"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("START", STARTS[start])],
        env={**os.environ, "SPARK_CONF_DIR": str(tmp_path), "SPARK_SUBMIT_OPTS": mine},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    jvm, kept, left = json.loads(done.stdout)
    options = [option for option in jvm if option in ("-XX:TieredStopAtLevel=1", "-Dmine=yes", "-Dadmin=yes")]
    assert options == ["-XX:TieredStopAtLevel=1", "-Dmine=yes", "-Dadmin=yes"]
    assert kept == [str(128 << 20)]
    assert left == mine
