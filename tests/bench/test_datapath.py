"""`commitlogfs bench` run whole and small, and its parts: wrong bytes are noticed, ratios stay within a round."""

import itertools
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest
from support.bench_runs import assert_nothing_left, bench_command, environment, run_bench, series
from support.command_line import LOAD_VERB
from support.waiting import PATIENCE_S, eventually

from commitlogfs.bench import datapath, targets
from commitlogfs.bench import datapath_content as content
from commitlogfs.bench.catalog_figures import WrongResultError
from commitlogfs.bench.datapath_rounds import in_turn
from commitlogfs.bench.datapath_settings import QUICK, Part, Settings
from commitlogfs.bench.datapath_workloads import append, fill_for_readers, read_cold
from commitlogfs.bench.report import Results, as_markdown
from commitlogfs.bench.report_goals import goals
from commitlogfs.bench.report_plot import draw, why_no_plot
from commitlogfs.bench.served import CommandFailedError
from commitlogfs.mount.linux import mountinfo

MIB = 1 << 20
DATA = ("append-sync", "append", "read-cold", "read-warm", "random-cold", "readers-cold", "create", "list")
BROKER = ("send-async", "send-sync", "consume", "catch-up-cold")


def assert_measured(document: dict[str, Any], names: tuple[str, ...], measured: set[str], rounds: int) -> None:
    found = {workload["workload"]: workload for workload in document["workloads"]}
    assert tuple(found) == names
    for workload in found.values():
        assert set(workload["targets"]) == measured, workload["workload"]
        for figures in workload["targets"].values():
            assert len(figures["values"]) == len(figures["ratios"]) == rounds
            assert 0 < figures["min"] <= figures["median"] <= figures["max"]
        assert workload["targets"]["native"]["ratio"] == 1


@pytest.mark.mounted
@pytest.mark.root
@pytest.mark.timing
def test_the_data_path_on_disks_of_its_own(workdir, tmp_path):
    output = tmp_path / "results"
    done = run_bench(workdir, "--quick", "--only", "data", "--output", str(output), "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout)
    assert json.loads((output / "results.json").read_text()) == document
    assert_measured(document, DATA, set(document["targets"]), rounds=2)
    assert set(document["targets"]) | set(document["left_out"]) == {
        *("native", "native-2", "mount", "plain", "mergerfs")
    }
    assert {"native", "plain"} <= set(document["targets"])
    assert ("mergerfs" in document["targets"]) == bool(targets.mergerfs_version())
    assert "loop devices" in document["disks"]
    assert {"kernel", "cpus", "load_average", "load_average_after", "versions"} <= document["environment"].keys()
    assert all(0 < cost < 1000 for cost in document["own_cost_us_per_step"].values())
    assert [goal["verdict"] == "not measured" for goal in document["goals"]] == [
        "mount" in document["left_out"] or goal["against"] in document["left_out"] for goal in document["goals"]
    ]
    assert "| append-sync |" in (output / "results.md").read_text()
    assert (output / "ratios.svg").exists() == (why_no_plot() == "")
    assert "read-warm: round 2 of 2, native" in done.stderr
    assert_nothing_left(workdir)


@pytest.mark.mounted
@pytest.mark.root
@pytest.mark.timing
def test_the_data_path_in_a_given_directory(workdir):
    done = run_bench(workdir, "--quick", "--only", "data", "--rounds", "1", "--directory", str(workdir))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 directories on " in done.stdout
    assert "Numbers to reach" in done.stdout
    assert_nothing_left(workdir)


def assert_recovery_measured(document: dict[str, Any], loads: tuple[int, ...] = (0,)) -> None:
    for recovery, load in zip(document["recovery"], loads, strict=True):
        assert recovery["load"] == load
        assert recovery["kills"] == len(recovery["seconds"]) == len(recovery["ordinary_seconds"]) == 2
        assert recovery["requests_failed"] == []
        assert 0 < recovery["median_seconds"] <= recovery["max_seconds"] < 20
        assert len(recovery["floor_seconds"]) == 2
        assert max(recovery["floor_seconds"]) < recovery["median_seconds"]


@pytest.mark.mounted
@pytest.mark.root
@pytest.mark.timing
def test_how_long_a_killed_daemon_is_missed(workdir):
    loads = ("--load", "0", "--load", "2")
    done = run_bench(workdir, "--quick", "--only", "recovery", *loads, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert_recovery_measured(json.loads(done.stdout), (0, 2))
    assert_nothing_left(workdir)


@pytest.mark.broker
@pytest.mark.mounted
@pytest.mark.root
@pytest.mark.soak
def test_all_parts_one_after_the_other(workdir):
    """On the same disks: what one has made is out of the way of the next."""
    done = run_bench(workdir, "--quick", "--rounds", "1", "--messages", "12000", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout)
    mount = "plain" if "mount" in document["left_out"] else "mount"  # on a kernel without passthrough
    workloads = document["workloads"]
    count = len(DATA) + len(BROKER)
    assert tuple(workload["workload"] for workload in workloads[:count]) == (*DATA, *BROKER)
    assert {workload["workload"].partition("-")[0] for workload in workloads[count:]} == {"move", "scrub"}
    assert_measured({"workloads": workloads[len(DATA) : count]}, BROKER, {"native", mount}, rounds=1)
    assert document["environment"]["versions"]["RocketMQ"] == "5.5.0"
    assert_recovery_measured(document)
    assert_nothing_left(workdir)


@pytest.mark.mounted
@pytest.mark.root
@pytest.mark.timing
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_clears_away(workdir, number):
    with subprocess.Popen(
        bench_command("--quick", "--only", "data"),
        env=environment(workdir),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as bench:
        try:
            eventually(lambda: any(mountinfo.is_commitlogfs(e) for e in mountinfo.mounts_below(workdir)), 60)
            os.killpg(bench.pid, number)
            out, err = bench.communicate(timeout=60)
        finally:
            if bench.poll() is None:
                os.killpg(bench.pid, signal.SIGKILL)
    assert bench.returncode == 128 + number, err
    assert err.endswith("interrupted; everything is removed\n")
    assert "Traceback" not in err
    assert out == ""
    assert_nothing_left(workdir)


@pytest.mark.root
def test_without_root_one_line_says_so():
    code = (
        f"{LOAD_VERB}import os, sys, commitlogfs.bench.datapath; load_verb('bench')\n"
        "os.setuid(65534); sys.exit(cli.main(['bench', '--quick']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "commitlogfs bench: root is required to mount disks and to drop caches\n"


SMALL = Settings(**{**QUICK, "segment_bytes": 2 * MIB, "readers": 1})


@pytest.mark.root
@pytest.mark.alone
def test_bytes_that_differ_are_an_error_not_a_figure(workdir):
    target = targets.native([workdir], SMALL.segment_bytes)
    fill_for_readers(target, SMALL)
    assert read_cold(target, SMALL) > 0
    with target.path(0).open("r+b") as file:
        file.seek(MIB + 5000)
        byte = file.read(1)[0]
        file.seek(MIB + 5000)
        file.write(bytes([byte ^ 1]))
    with pytest.raises(WrongResultError, match="other bytes than written from 1048576 on"):
        read_cold(target, SMALL)


@pytest.mark.root
@pytest.mark.alone
def test_a_segment_in_the_wrong_place_is_an_error(workdir):
    """Each page tells whose it is, so that not even an equal position of another segment passes."""
    target = targets.native([workdir], SMALL.segment_bytes)
    fd = target.create(0)
    content.write_segment(fd, 1, SMALL.segment_bytes)
    os.close(fd)
    with pytest.raises(WrongResultError):
        read_cold(target, SMALL)


def test_appends_are_read_back_and_removed(workdir):
    target = targets.native([workdir], SMALL.segment_bytes)
    assert append(target, SMALL) > 0
    assert list(target.directories[0].iterdir()) == []


def test_pages_and_chunks_agree():
    chunk = content.make_chunk(3, MIB)
    for position in (MIB, MIB + content.PAGE, 2 * MIB - content.PAGE):
        at = position - MIB
        assert content.make_page(3, position) == chunk[at : at + content.PAGE]
    assert len({chunk[at : at + content.PAGE] for at in range(0, MIB, content.PAGE)}) == MIB // content.PAGE


@pytest.mark.parametrize("count", [2, 3, 4, 5, 6])
def test_each_target_comes_after_each_other_equally_often(count):
    items = range(count)
    rounds = [in_turn(items, turn) for turn in range(count * (1 + count % 2))]
    assert all(sorted(order) == list(items) for order in rounds)
    pairs = Counter(pair for order in rounds for pair in itertools.pairwise(order))
    assert len(pairs) == count * (count - 1)
    assert len(set(pairs.values())) == 1
    assert {order[0] for order in rounds} == set(items)


def test_ratios_compare_within_a_round():
    """The machine became half as fast for the second round: no ratio changes."""
    one = series(native=[100, 50, 80], mount=[90, 45, 88])
    assert one.ratios("mount") == [0.9, 0.9, 1.1]
    assert one.ratio("mount") == 0.9
    assert one.ratio("mergerfs") is None


@pytest.mark.parametrize(
    ("mount", "verdict"), [([95], "met"), ([94], "missed by 1.1%"), ([], "not measured"), ([120], "met")]
)
def test_goals_are_met_from_their_floor_on(mount, verdict):
    against_native = goals([series(native=[100], mount=mount)])[0]
    assert (against_native.against, against_native.floor, against_native.verdict) == ("native", 0.95, verdict)


def test_only_goals_of_what_ran_are_listed():
    assert {(goal.workload, goal.against) for goal in goals([series(native=[1])])} == {
        ("append", "native"),
        ("append", "mergerfs"),
    }


@pytest.mark.root
def test_what_was_measured_before_a_failure_is_kept(monkeypatch, tmp_path, workdir, capsys):
    """Here mergerfs breaks off; the workloads before stay in the results, which say that they are incomplete."""

    def measure(work, disks, settings, tell, found):
        found.series.append(series(native=[100], mount=[90]))
        raise CommandFailedError("mergerfs: gone")

    monkeypatch.setenv("TMPDIR", str(workdir))
    monkeypatch.setattr(datapath, "measure_data_path", measure)
    monkeypatch.setattr(datapath.Interrupts, "install", lambda self: None)
    settings = Settings(**{**QUICK, "parts": (Part.DATA,), "directory": workdir})
    assert datapath.run(settings, tmp_path / "results", as_json=True) == 1
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert document == json.loads((tmp_path / "results" / "results.json").read_text())
    assert document["failure"] == "mergerfs: gone"
    assert document["workloads"][0]["targets"]["mount"]["values"] == [90]
    assert captured.err.endswith("commitlogfs bench: mergerfs: gone\n")
    assert_nothing_left(workdir)


def test_the_markdown_tells_what_the_figures_depend_on():
    where = {"taken_at": "T", "kernel": "6.18", "cpus": 2, "load_average": [1, 2, 3], "python": "3", "versions": {}}
    results = Results(
        Settings(parts=(Part.DATA,)),
        where,
        "loops",
        [series(native=[100], mount=[90])],
        left_out={"mergerfs": "no"},
    )
    text = as_markdown(results)
    for part in ("Linux 6.18", "load average 1 2 3", "left out: mergerfs: no", "missed by 5.3%"):
        assert part in text


@pytest.mark.skipif(why_no_plot() != "", reason="no matplotlib")
@pytest.mark.parametrize(("suffix", "magic"), [("svg", b"<?xml"), ("png", b"\x89PNG")])
def test_the_plot_is_a_picture(tmp_path, suffix, magic):
    path = tmp_path / f"ratios.{suffix}"
    draw([series(native=[100, 100], mount=[90, 120], mergerfs=[30, 40])], path)
    assert path.read_bytes().startswith(magic)
