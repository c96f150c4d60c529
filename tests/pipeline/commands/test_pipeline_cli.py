"""Whatever is typed: one line that says what is wrong, the documented exit status, never a traceback.

Hardly any of these starts Spark: what can be refused is refused before its seconds are spent.
"""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.messages import messages
from support.waiting import PATIENCE_S, eventually
from support.written_logs import write_log

from commitlogfs.pipeline import cli
from commitlogfs.pipeline.broker.settings import BrokerSettings, load_broker_settings
from commitlogfs.pipeline.commands import common
from commitlogfs.pipeline.commands.spark_noise import without_noise
from commitlogfs.pipeline.jobs import audit_page
from commitlogfs.pipeline.jobs.apply import make_manifest, write_manifest
from commitlogfs.pipeline.jobs.audit import AuditReport
from commitlogfs.pipeline.log.segments import list_segments

VERBS = ["rebuild", "audit", "export", "replay", "stats"]
USAGE, UNREACHABLE, REFUSED = 2, 3, 4
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`commitlogfs-pipeline ARGUMENTS` beside a log, an empty directory, a file and a store."""
    write_log(tmp_path / "log", 1 << 16, messages(100))
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "something").touch()
    (tmp_path / "bad.conf").write_text("messageDelayLevel=soon\n")
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        status = cli.main(list(arguments))
        said = capfd.readouterr()
        return status, said.out, said.err

    return call


@pytest.mark.parametrize(
    ("line", "status", "said"),
    [
        ("nonsense", USAGE, "No such command 'nonsense'"),
        ("--nonsense", USAGE, "No such option"),
        ("stats", USAGE, "Missing argument 'LOG'"),
        ("stats nowhere", UNREACHABLE, "nowhere: No such file or directory; check that the log is mounted there"),
        ("stats file", UNREACHABLE, "file: Not a directory"),
        ("stats empty", UNREACHABLE, "empty: holds no segments; check that the log is mounted there"),
        ("stats other", UNREACHABLE, "other: holds no segments"),
        ("stats log,empty,log", REFUSED, ": is at "),
        ("stats foo://bar/log", UNREACHABLE, "foo://bar/log: "),
        ("stats log --segment-size 4096", USAGE, "--segment-size: log: segment"),
        ("stats log --segment-size none", USAGE, "--segment-size: 'none': must be a number of bytes above 0"),
        ("stats log --split-size 0", USAGE, "--split-size: '0': must be a number of bytes above 0"),
        ("stats log --mode loose", USAGE, "must be FAILFAST or PERMISSIVE"),
        ("export log", USAGE, "Missing argument 'OUTPUT'"),
        ("export nowhere out", UNREACHABLE, "nowhere: No such file"),
        ("export empty out", UNREACHABLE, "empty: holds no segments"),
        ("export log file", REFUSED, "/file: is a file; name a directory"),
        ("export log other", REFUSED, "/other: holds other files (something)"),
        ("export log /proc/out", REFUSED, "/proc/out: cannot be written (No such file or directory)"),
        ("export log foo://bar", UNREACHABLE, "foo://bar: "),
        ("export log out --columns topics", USAGE, "column topics is unknown; the columns are topic, queueId"),
        ("export log out --columns topic", USAGE, "name another column for the files"),
        ("export log out --columns body,body", USAGE, "occurs twice"),
        (
            "export log out --partition-by hour",
            USAGE,
            "partition by hour: is not supported; the columns are topic, date",
        ),
        ("export log out --compression rar", USAGE, "compression rar: is unknown; choose zstd"),
        ("export log out --starting-offsets soon", USAGE, "option --starting-offsets = 'soon': must be"),
        ("export log out --starting-offsets 99999999", UNREACHABLE, "the log ends at"),
        ("export log out --topic a --topic-pattern b", USAGE, "exclude each other"),
        ("export log out --topic-pattern (", USAGE, "is not a regular expression"),
        ("export log out --file-size much", USAGE, "--file-size: 'much'"),
        ("export log out --range-size much", USAGE, "--range-size: 'much'"),
        ("export log out --checkpoint cp", USAGE, "--checkpoint has no effect without --follow"),
        ("export log out --follow --replace", USAGE, "--follow and --available-now exclude --replace"),
        ("export log out --available-now --iceberg a.b.c", USAGE, "--available-now is not needed with --iceberg"),
        ("export log out --follow --iceberg a.b.c --checkpoint c", USAGE, "--checkpoint has no effect with"),
        ("export log out --dry-run --iceberg lake.messages", USAGE, "--iceberg lake.messages: is not CATALOG."),
        ("export log out --dry-run --iceberg lake..messages", USAGE, "is not CATALOG.NAMESPACE.TABLE"),
        ("export log out --replace --iceberg a.b.c", USAGE, "--replace deletes files that the table"),
        ("export log out --follow --delta --ending-offsets 5", USAGE, "go to the log's end; leave out --ending"),
        ("export log out --replace --delta", USAGE, "--replace deletes files that the table of --delta has"),
        ("export log out --follow --ending-offsets 5", USAGE, "go to the log's end; leave out --ending"),
        ("stats ftp://me:secret@host/log", UNREACHABLE, "ftp://host/log: Unrecognized filesystem type"),
        ("export log s3://k:s@b/out --delta", USAGE, "s3://b/out: a table cannot have an output with settings"),
        (
            "export log,empty out",
            REFUSED,
            "empty: holds no segments; mount its disk, or leave it out; --no-fail-on",
        ),
        ("rebuild log,empty --output out", REFUSED, "leave it out; --mode PERMISSIVE reads the rest"),
        ("export log log/out", REFUSED, "is inside the log; name a directory outside of"),
        ("replay", USAGE, "Missing argument 'LOG'"),
        ("replay log --position p", USAGE, "Missing option '--to'"),
        ("replay log --to h:1", USAGE, "Missing option '--position'"),
        ("replay nowhere --to h:1 --position p", UNREACHABLE, "nowhere: No such file"),
        ("replay empty --to h:1 --position p", UNREACHABLE, "empty: holds no segments"),
        ("replay log --to h:1 --position no/p", REFUSED, "no/p: cannot be written (No such file or directory)"),
        ("replay log --to h:1 --position empty", REFUSED, "empty: cannot be read as a position"),
        ("replay log --to h:1 --position bad.conf", REFUSED, "bad.conf: is not the position of a replay"),
        ("replay log --to h:1 --position p --map-topic A", USAGE, "--map-topic A: must be OLD=NEW"),
        (
            "replay log --to h:1 --position p --map-topic A=B --map-topic A=C",
            USAGE,
            "--map-topic: A is mapped twice",
        ),
        ("replay log --to h:1 --position p --rate 0", USAGE, "--rate"),
        ("replay log --to h:1 --position p --topic TBW102", USAGE, "TBW102: a client may not send to it"),
        ("replay log --to h:1 --position p --topic %RETRY%g", USAGE, "%RETRY%g: a client may not send to it"),
        ("replay log --to h:1 --position p --topic rmq_sys_x", USAGE, "rmq_sys_x: a client may not send to it"),
        ("replay log --to h:1 --position p --map-topic A=TBW102", USAGE, "--map-topic: TBW102: a client may not"),
        ("replay log --to h:1 --position p --starting-offsets latest", USAGE, "must be earliest or a log offset"),
        ("replay log --to h:1 --position p --credentials nowhere", USAGE, "--credentials nowhere: cannot be read"),
        ("replay log --to h:1 --position p --client nowhere", UNREACHABLE, "nowhere: has no rocketmq-client*.jar"),
        ("rebuild", USAGE, "no log given; give LOG, --store-root or --broker-conf"),
        ("rebuild log", USAGE, "no output given; give --output DIR"),
        ("rebuild log --apply", USAGE, "give --store-root"),
        ("rebuild log --output other", REFUSED, "other: exists; remove it"),
        ("rebuild nowhere --output out", UNREACHABLE, "nowhere: No such file"),
        ("rebuild --store-root nowhere --output out", USAGE, "--store-root: nowhere: no such directory"),
        ("rebuild --store-root empty --output out", UNREACHABLE, "empty/commitlog: No such file"),
        ("rebuild log --broker-conf nowhere --output out", USAGE, "nowhere: cannot be read"),
        ("rebuild log --broker-conf bad.conf --output out", USAGE, "messageDelayLevel: 'soon' is not a time"),
        ("rebuild log --broker-version new --output out", USAGE, "broker version 'new': is not a version"),
        ("rebuild log --topic-start T --output out", USAGE, "--topic-start: 'T': must be TOPIC=OFFSET"),
        ("rebuild log --topic-start T=-1 --output out", USAGE, "--topic-start: 'T=-1': must be TOPIC=OFFSET"),
        ("rebuild log --topic-start =5 --output out", USAGE, "--topic-start: '=5': must be TOPIC=OFFSET"),
        (
            "rebuild log --live-topics-only --output out",
            USAGE,
            "--live-topics-only: the topics are unknown; give --store-root",
        ),
        ("rebuild log --store-root empty --live-topics-only --output out", USAGE, "has no config/topics.json"),
        ("audit", USAGE, "no log given"),
        ("audit nowhere", UNREACHABLE, "nowhere: No such file"),
        ("audit log --html nowhere/page.html", USAGE, "/nowhere: no such directory"),
        ("audit log --html empty", REFUSED, "--html: empty: cannot be written (Is a directory)"),
        (
            "export log out --follow --file-size 1g",
            USAGE,
            "--file-size and --range-size have no effect on a stream",
        ),
        ("export log out --available-now --range-size 1g", USAGE, "--file-size and --range-size have no effect"),
        ("export log out --interval 5", USAGE, "--interval has no effect without --follow"),
        ("export log out --available-now --interval 5", USAGE, "--interval has no effect without --follow"),
    ],
)
def test_bad_input(run: Run, tmp_path: Path, line: str, status: int, said: str) -> None:
    before = sorted(tmp_path.rglob("*"))
    got, out, err = run(*line.split())
    assert (got, out) == (status, ""), err
    assert err.startswith("commitlogfs-pipeline: ")
    assert said in err
    assert "secret" not in err
    assert err.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_what_is_told_of_deleted_topics_reaches_the_rules(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty/config").mkdir()
    (tmp_path / "empty/config/topics.json").write_text('{"topicConfigTable": {"A": {}, "B=C": {}}}')
    found: list[BrokerSettings] = []

    def load(*arguments: Any, **options: Any) -> BrokerSettings:
        found.append(load_broker_settings(*arguments, **options))
        return found[-1]

    monkeypatch.setattr("commitlogfs.pipeline.broker.settings.load_broker_settings", load)
    line = "rebuild log --store-root empty --output out --dry-run"
    told = "--live-topics-only --topic-start A=77 --topic-start B=C=1234567890123"
    status, _, err = run(*line.split(), *told.split())
    assert (status, err) == (0, "")
    assert found[0].rules.topics == {"A", "B=C"}
    assert found[0].rules.topic_starts == {"A": 77, "B=C": 1234567890123}
    assert run(*line.split())[0] == 0
    assert (found[1].rules.topics, found[1].rules.topic_starts) == (None, {})
    status, _, err = run(*line.split(), "--topic-start", "Aa=5")
    assert (status, "--topic-start: topic Aa is not in" in err) == (USAGE, True)


def test_live_topics_in_rocksdb_are_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty/config/rdb").mkdir(parents=True)
    (tmp_path / "empty/config/topics.json").write_text('{"topicConfigTable": {"A": {}}}')
    line = "rebuild log --store-root empty --output out --dry-run"
    status, _, err = run(*line.split())
    assert (status, "warning: empty/config/rdb: the broker has its topics in this" in err) == (0, True)
    status, _, err = run(*line.split(), "--live-topics-only")
    assert (status, "empty/config/rdb: " in err, err.count("\n")) == (USAGE, True, 1)
    assert run(*line.split(), "--topic-start", "New=5")[0] == 0


def test_a_page_that_cannot_be_written_at_the_end_costs_no_report(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = AuditReport("log", None, 0, 100, 1)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "page.html")

    monkeypatch.setattr(common, "spark_for_jobs", lambda *_: nullcontext())
    monkeypatch.setattr(common, "run_job", lambda *_: report)
    monkeypatch.setattr(audit_page, "write_page", full)
    status, out, err = run("audit", "log", "--html", "page.html", "--json")
    assert (status, json.loads(out)["whole"]) == (REFUSED, True)
    assert err == "commitlogfs-pipeline: page.html: cannot be written (No space left on device)\n"
    assert not Path("page.html").exists()


def test_queues_with_misplaced_entries_are_not_installed(run: Run, tmp_path: Path) -> None:
    store = tmp_path / "store"
    log = write_log(store / "commitlog", 1 << 16, messages(10))
    for place in store / "rebuilt/index", store / "index":
        place.mkdir(parents=True)
        (place / "file").write_text(str(place))
    (store / "lock").touch()
    listing = list_segments(str(log.directory))
    write_manifest(store / "rebuilt", make_manifest(str(log.directory), listing, log.end, misplaced=5))
    line = "rebuild --store-root store --apply"
    status, out, err = run(*line.split())
    assert (status, out) == (REFUSED, "")
    assert "5 entries are in wrong positions" in err
    assert err.count("\n") == 1
    status, out, err = run(*line.split(), "--accept-misplaced")
    assert (status, err) == (0, "")
    assert "installed: store/index" in out


def test_an_installation_beside_a_running_broker_is_refused(run: Run, tmp_path: Path) -> None:
    write_log(tmp_path / "store/commitlog", 1 << 16, messages(10))
    lock = tmp_path / "store/lock"
    broker = (
        "import fcntl, sys\n"
        "file = open(sys.argv[1], 'a+b')\n"
        "fcntl.lockf(file, fcntl.LOCK_EX, 1, 0)\n"
        "print(flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", broker, str(lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        status, out, err = run("rebuild", "--store-root", "store", "--apply")
        assert (status, out) == (REFUSED, "")
        running = f"store: a broker is running on this store (process {process.pid}); stop it first"
        assert err == f"commitlogfs-pipeline: {running}\n"
        assert process.stdin is not None
        process.stdin.close()


def test_an_installation_is_one_json_document(run: Run, tmp_path: Path) -> None:
    store = tmp_path / "store"
    log = write_log(store / "commitlog", 1 << 16, messages(10))
    for place in store / "rebuilt/index", store / "index":
        place.mkdir(parents=True)
    (store / "lock").touch()
    (store / "abort").touch()
    listing = list_segments(str(log.directory))
    write_manifest(store / "rebuilt", make_manifest(str(log.directory), listing, log.end))
    line = "rebuild --store-root store --apply --json"
    assert json.loads(run(*line.split(), "--dry-run")[1]) == {
        "output": "store/rebuilt",
        "would_install_in": "store",
    }
    status, out, err = run(*line.split())
    told = json.loads(out)
    assert status == 0
    assert told["installed"] == ["store/index"]
    assert [Path(path).name.partition("-")[0] for path in told["kept"]] == ["index.bak"]
    assert [f"warning: {warning}\n" for warning in told["warnings"]] == [err]
    assert "the broker was not stopped cleanly" in err


def test_plans_are_json_documents(run: Run, tmp_path: Path) -> None:
    size = (tmp_path / "log" / ("0" * 20)).stat().st_size
    planned = json.loads(run(*["rebuild", "log", "--output", "out", "--index", "--dry-run", "--json"])[1])
    assert planned == {
        **{"log": "log", "output": "out", "segments": 1, "bytes": size},
        **{"consumequeue": False, "index": True, "warnings": []},
    }
    planned = json.loads(run(*["--json", "export", "log", "out", "--dry-run"])[1])
    end = planned["end_offset"]
    assert 0 < end < size
    assert planned == {
        **{"output": "out", "end_offset": end, "bytes": end, "ranges_finished_before": 0, "lost": [], "kept": []},
        "accepted_losses": [],
        **{"not_served": [], "removed": []},
        "ranges": [{"start_offset": 0, "end_offset": end}],
    }


def test_a_rebuild_without_index_is_announced(run: Run, tmp_path: Path) -> None:
    (tmp_path / "b.conf").write_text("indexFileWriteEnable=false\nindexRocksDBEnable=true\n")
    line = "rebuild log --broker-conf b.conf --output out --dry-run"
    status, out, err = run(*line.split())
    assert status == 0
    assert "and write consume queues to out" in out
    assert "warning: no index is made: indexFileWriteEnable = false: the index of this broker is in" in err
    planned = json.loads(run(*line.split(), "--json")[1])
    assert (planned["consumequeue"], planned["index"]) == (True, False)
    assert planned["warnings"] == [err.removeprefix("warning: ").rstrip("\n")]
    status, _, err = run(*line.split(), "--index")
    assert (status, "in a RocksDB database" in err) == (REFUSED, True)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself(run: Run, verb: str) -> None:
    status, out, err = run(verb, "--help")
    assert (status, err) == (0, "")
    assert "EXIT STATUS: 0 " in out


def test_the_table_of_verbs_is_complete(run: Run) -> None:
    commands = {command.callback.__name__ for command in cli.app.registered_commands if command.callback}
    assert commands == set(VERBS)
    assert run("--version")[1].startswith("commitlogfs-pipeline ")


@pytest.mark.parametrize("line", ["export log out", "rebuild log --output out"])
def test_a_dry_run_says_what_would_be_done(run: Run, tmp_path: Path, line: str) -> None:
    status, out, err = run(*line.split(), "--dry-run")
    assert (status, err) == (0, "")
    assert "1 range" in out or "Would read 1 segment" in out
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("verb", "library"),
    [
        ("stats log", "pyspark"),
        ("stats log", "numba"),
        ("export log out", "pyspark"),
        ("export log out", "pyarrow"),
        ("rebuild log --output out", "pyspark"),
        ("audit log", "pyspark"),
    ],
)
def test_without_the_extra_one_line_says_what_to_install(verb: str, library: str, tmp_path: Path) -> None:
    write_log(tmp_path / "log", 1 << 16, messages(3))
    program = (
        f"import sys; sys.modules[{library!r}] = None\n"
        "from commitlogfs.pipeline.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", program, *verb.split()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stdout) == (REFUSED, "")
    assert done.stderr == f"commitlogfs-pipeline: {library} is not installed; pip install 'commitlogfs[spark]'\n"


def test_help_needs_no_extra() -> None:
    program = (
        "import sys\n"
        "from commitlogfs.pipeline.cli import main; main(['export', '--help'])\n"
        "print(sorted({'pyspark', 'numba', 'numpy', 'pyarrow'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (done.returncode, done.stderr) == (0, "[]\n")


# --- what Spark prints -----------------------------------------------------------------------------------

_IDLE = """Traceback (most recent call last):
  File "/x/pyspark.zip/pyspark/daemon.py", line 264, in manager
  File "/x/pyspark.zip/pyspark/daemon.py", line 95, in worker
BrokenPipeError: [Errno 32] Broken pipe
"""
_TWO_IDLE = """Traceback (most recent call last):
Traceback (most recent call last):
  File "/x/pyspark.zip/pyspark/daemon.py", line 264, in manager
  File "/x/pyspark.zip/pyspark/daemon.py", line 264, in manager
  File "/x/pyspark.zip/pyspark/daemon.py", line 95, in worker
BrokenPipeError: [Errno 32] Broken pipe
  File "/x/pyspark.zip/pyspark/daemon.py", line 95, in worker
BrokenPipeError: [Errno 32] Broken pipe
"""
_REAL = """Traceback (most recent call last):
  File "/x/pyspark.zip/pyspark/daemon.py", line 264, in manager
  File "/x/ours.py", line 95, in work
BrokenPipeError: [Errno 32] Broken pipe
"""
_START = """WARNING: Using incubator modules: jdk.incubator.vector
Using Spark's default log4j profile: org/apache/spark/log4j2-defaults.properties
26/11/21 23:37:42 WARN Utils: Set SPARK_LOCAL_IP if you need to bind to another address
Setting default log level to "WARN".
Picked up JAVA_TOOL_OPTIONS: -Xmx1g
"""


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (_START, ""),
        (_IDLE, ""),
        (_TWO_IDLE, ""),
        (_REAL, _REAL),
        (f"one\n{_START}lost: this\n{_IDLE}{_REAL}two\n", f"one\nlost: this\n{_REAL}two\n"),
        ("Traceback (most recent call last):\n  File", "Traceback (most recent call last):\n  File"),
    ],
)
def test_only_noise_is_kept_back(text: str, left: str) -> None:
    assert "".join(without_noise(text.splitlines(keepends=True))) == left


_LOST = (
    "Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, most recent failure: Lost task 0.0 in "
    "stage 1.0 (TID 1) (host executor driver): "
)

# --- whole commands --------------------------------------------------------------------------------------


def command(*arguments: object, **options: Any) -> "subprocess.CompletedProcess[str]":
    line = [sys.executable, "-m", "commitlogfs.pipeline", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, timeout=300, check=False, **options)


@pytest.mark.full
def test_verbs_with_spark_print_their_result_and_nothing_else(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", 1 << 16, messages(1000))
    options = {"env": {**os.environ, "MASTER": "local[2]"}, "cwd": tmp_path}
    counted = command("--json", "stats", "log", **options)
    assert (counted.returncode, counted.stderr) == (0, "")
    assert json.loads(counted.stdout)["total"]["messages"] == 1000
    log.write_at(log.offsets[500] + 4, b"\0\0\0\0")
    damaged = command("stats", "log", **options)
    assert (damaged.returncode, damaged.stdout) == (1, "")
    assert damaged.stderr.count("\n") == 1
    assert f"log offset {log.offsets[500]}: no record begins here" in damaged.stderr


@pytest.mark.soak
def test_more_verbs_with_spark_print_their_result_and_nothing_else(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", 1 << 16, messages(1000))
    options = {"env": {**os.environ, "MASTER": "local[2]"}, "cwd": tmp_path}
    first = command("export", "log", "out", **options)
    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout.startswith("1,000 messages in 3 files, ")
    assert command("-q", "export", "log", "out", **options).stdout == ""
    log.write_at(log.offsets[500] + 4, b"\0\0\0\0")
    told = command("stats", "log", "--mode", "permissive", **options)
    assert told.returncode == 1
    assert f"damage: segment {log.segment_at(log.offsets[500]).name}" in told.stderr
    found = command("audit", "log", "--html", "page.html", **options)
    assert (found.returncode, found.stderr) == (1, "")
    assert "1 x damage" in found.stdout
    assert "<html" in (tmp_path / "page.html").read_text()


@pytest.mark.full
def test_a_master_that_is_none(tmp_path: Path) -> None:
    write_log(tmp_path / "log", 1 << 16, messages(10))
    failed = command("stats", tmp_path / "log", "--master", "nonsense")
    assert (failed.returncode, failed.stdout) == (UNREACHABLE, "")
    assert failed.stderr.startswith("commitlogfs-pipeline: Spark does not start with master nonsense: ")
    assert failed.stderr.count("\n") == 1


def test_a_missing_java_is_one_line(tmp_path: Path) -> None:
    write_log(tmp_path / "log", 1 << 16, messages(10))
    failed = command("stats", tmp_path / "log", env={**os.environ, "JAVA_HOME": "/nonexistent"})
    assert (failed.returncode, failed.stdout, failed.stderr.count("\n")) == (UNREACHABLE, "", 1)
    assert failed.stderr == (
        "commitlogfs-pipeline: Spark does not start: /nonexistent/bin/java: No such file or directory; check "
        "JAVA_HOME: Spark needs Java 17 or later\n"
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"{_LOST}java.io.IOException: No space left on device\n\tat x.Y", "No space left on device"),
        (f"{_LOST}org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)", "a Python worker"),
        ("Cannot call methods on a stopped SparkContext.\nThis was created at:", "it stopped while starting"),
        ("something\nelse", "something"),
        ("", "RuntimeError"),
    ],
)
def test_an_error_of_spark_is_shortened_to_its_reason(text: str, reason: str) -> None:
    assert common.spark_reason(RuntimeError(text)).startswith(reason)


@pytest.mark.full
@pytest.mark.parametrize(
    ("killed", "status", "said"),
    [
        ("java", UNREACHABLE, "Spark's JVM was killed by signal 9; if memory ran out"),
        ("worker", 1, "Spark: a Python worker was killed or crashed; if memory ran out"),
    ],
)
def test_a_killed_process_of_spark_is_one_line(tmp_path: Path, killed: str, status: int, said: str) -> None:
    job = _start_long_export(tmp_path)
    try:
        eventually(lambda: len(_workers(job.pid)) > 1, 240)
        jvm = next(process for process in psutil.Process(job.pid).children() if process.name() == "java")
        (jvm if killed == "java" else _workers(job.pid)[-1]).kill()
        _, err = job.communicate(timeout=300)
        eventually(lambda: not _session_members(job.pid))
    finally:
        _kill_session(job.pid)
        job.wait(300)
    assert (job.returncode, err.count("\n")) == (status, 1), err
    assert said in err


def _start_long_export(directory: Path) -> "subprocess.Popen[str]":
    """One of many tasks, on one core, in a session of its own."""
    write_log(directory / "log", 1 << 20, messages(30_000))
    line = [sys.executable, "-m", "commitlogfs.pipeline", "export", "log", "out", "--split-size", "10k"]
    environment = {**os.environ, "MASTER": "local[1]"}
    return subprocess.Popen(
        line, cwd=directory, start_new_session=True, stderr=subprocess.PIPE, text=True, env=environment
    )


def _workers(session: int) -> list[psutil.Process]:
    """Spark's daemon of Python workers, then the workers."""
    below = psutil.Process(session).children(recursive=True)
    return [process for process in below if "pyspark.worker" in _command(process)]


@pytest.mark.full
@pytest.mark.parametrize("started", ["bin/java", "pyspark.worker"])
def test_an_interrupted_job_ends_at_once_and_leaves_nothing(tmp_path: Path, started: str) -> None:
    job = _start_long_export(tmp_path)
    try:
        eventually(lambda: any(started in line for line in _session_members(job.pid)), 240)
        job.send_signal(signal.SIGINT)
        if started == "pyspark.worker":  # an impatient user: Spark is stopping
            for _ in range(20):
                time.sleep(0.05)
                job.send_signal(signal.SIGINT)
        _, err = job.communicate(timeout=300)
        eventually(lambda: not _session_members(job.pid))
    finally:
        _kill_session(job.pid)
        job.wait(300)
    assert (job.returncode, err) == (130, "")
    assert list((tmp_path / "out").rglob("*.parquet")) == []


@pytest.mark.full
def test_an_interrupt_ends_a_stream_cleanly_and_nothing_is_left(tmp_path: Path) -> None:
    write_log(tmp_path / "log", 1 << 16, messages(100))
    line = [sys.executable, "-m", "commitlogfs.pipeline", "export", "log", "out", "--follow", "--interval", "1"]
    stream = subprocess.Popen(
        line, cwd=tmp_path, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        deadline = time.monotonic() + 240
        while not list((tmp_path / "out").glob("_spark_metadata/0")):
            assert stream.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        stream.send_signal(signal.SIGINT)
        out, err = stream.communicate(timeout=300)
        eventually(lambda: not _session_members(stream.pid))
    finally:
        _kill_session(stream.pid)
        stream.wait(300)
    assert (stream.returncode, out, err) == (0, "", "")


def _kill_session(session: int) -> None:
    for process in psutil.process_iter():
        if _session_of(process.pid) == session:
            process.kill()


def _session_members(session: int) -> list[str]:
    return [_command(process) for process in psutil.process_iter() if _session_of(process.pid) == session]


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None
