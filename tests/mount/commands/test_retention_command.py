"""`commitlogfs retention simulate` as typed: what it says, its document, its exit statuses, and bad input."""

import json
import os

import pytest
from support.loop_disks import MIB

from commitlogfs.console.exit_status import ExitCode
from commitlogfs.mount.cli import main

DAY = 86_400
SMALL = ("--disks", "3x100GB", "--ingest", "10MB/s")
KEEP = ("--reserved", "1000h")
FILESYSTEM = ("--mode", "filesystem", *KEEP, "--delete-when", "04")


@pytest.fixture
def simulate(capsys):
    """Runs it; the exit status, standard output and standard error."""

    def run(*arguments: str):
        status = main(["retention", "simulate", *arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


@pytest.fixture
def document(simulate):
    """The JSON document of a run that worked."""

    def run(*arguments: str):
        status, out, err = simulate(*arguments, "--json")
        assert status in (ExitCode.OK, ExitCode.FINDINGS), err
        return json.loads(out)

    return run


def test_it_says_how_far_the_log_reaches_back(simulate):
    status, out, err = simulate(*SMALL)
    assert (status, err) == (ExitCode.FINDINGS, "")
    lines = out.splitlines()
    assert lines[0].startswith("3 disks, 300GB in all, 10MB/s in segments of 1GiB, placement round-robin, ")
    # 255 GB at 10 MB/s: 7.1 h; a batch less: 6.8 h
    assert lines[1] == "The log reaches back 6.8 h to 7.1 h (median 6.9 h), from 7.1 h after the beginning on."
    assert lines[2].startswith("Every disk has reached clean after 6.2 h, force after 7.1 h.")
    assert lines[3].endswith("for lack of space, whatever their age.")
    assert "warning: messages are removed after 6.8 h, before their time: 3.0 d" in out


def test_equal_disks_share_a_row(simulate):
    _, out, _ = simulate(
        "--disks", "3x100GB,200GB", "--ingest", "10MB/s", "--reserved", "6h", "--delete-when", "04;16"
    )
    table = out.split("\n\n")[1].splitlines()
    assert [line.split()[:2] for line in table] == [["disk", "size"], ["1-3", "100GB"], ["4", "200GB"]]


def test_enough_room_is_no_finding(simulate):
    status, out, _ = simulate("--disks", "2x20TB", "--ingest", "10MB/s", "--days", "10")
    assert status == ExitCode.OK
    assert "The log reaches back 3.0 d to 4.0 d" in out
    assert "older than 3.0 d" in out
    assert "warning" not in out


def test_the_document(document):
    found = document(*SMALL, *KEEP, "--days", "3")
    assert list(found) == [
        "scenario",
        "reached_seconds",
        "first_removal_seconds",
        "steady_seconds",
        "retention_seconds",
        "changes",
        "removed",
        "youngest_removed_seconds",
        "segments",
        "refused",
        "disks",
        "remarks",
    ]
    assert found["scenario"] == {
        "duration_seconds": 3 * DAY,
        "ingest_bytes_per_second": 10_000_000,
        "daily_wave_percent": 0,
        "segment_size": 2**30,
        "placement": "round-robin",
        "mode": "cooperative",
        "trigger": "all",
        "reserved_seconds": 1000 * 3600,
        "delete_when": [4],
    }
    assert found["retention_seconds"]["median"] == pytest.approx(0.85 * 300e9 / 10e6, rel=0.05)
    assert [removed["by"] for removed in found["removed"]] == ["broker"]
    assert found["reached_seconds"]["full"] is None
    assert len(found["disks"]) == 3
    assert found["disks"][0]["thresholds"] == {"clean": 75, "force": 85, "full": 90, "resume": 83, "min_free": 0}
    assert [remark["code"] for remark in found["remarks"]] == ["removed-early"]


def test_json_before_the_verb(capsys):
    main(["--json", "retention", "simulate", *SMALL])
    assert json.loads(capsys.readouterr().out)["segments"]["created"] > 100


def test_mode_filesystem_with_age(document):
    found = document(*SMALL, "--mode", "filesystem", "--reserved", "2h", "--delete-when", "04;10;16;22")
    assert found["removed"][0]["by"] == "filesystem"
    assert [removed["rule"] for removed in found["removed"]] == ["age"]
    assert found["retention_seconds"]["shortest"] == pytest.approx(2 * 3600, rel=0.05)


def test_thresholds_and_segment_size(document):
    options = ("--force", "60", "--clean", "50", "--full", "70", "--segment", "256MiB", "--min-free", "1GB")
    found = document(*SMALL, *KEEP, *options)
    wanted = {"clean": 50, "force": 60, "full": 70, "resume": 58, "min_free": 10**9}
    assert found["disks"][0]["thresholds"] == wanted
    assert found["scenario"]["segment_size"] == 256 * MIB
    assert found["retention_seconds"]["median"] == pytest.approx(0.6 * 300e9 / 10e6, rel=0.05)


def codes(found):
    return {remark["code"] for remark in found["remarks"]}


def test_a_small_disk_is_reported(document):
    found = document("--disks", "2x400GB,50GB", "--ingest", "10MB/s", *KEEP)
    assert "small-disk" in codes(found)
    assert found["disks"][2]["skipped"]
    assert "/data3" in next(r["text"] for r in found["remarks"] if r["code"] == "small-disk")


def test_a_small_disk_that_decides_is_a_warning(simulate):
    status, out, _ = simulate("--disks", "2x400GB,50GB", "--ingest", "10MB/s", "--trigger", "any", *FILESYSTEM)
    assert status == ExitCode.FINDINGS
    assert "decides for the whole log" in out


@pytest.mark.parametrize("disk", ["2", "/data2"])
def test_other_data_on_a_disk(document, disk):
    found = document(*SMALL, *KEEP, "--foreign", f"{disk}:95GB")
    assert "foreign-data" in codes(found)
    assert found["disks"][1]["segments"] == 0
    assert found["retention_seconds"]["median"] == pytest.approx(0.85 * 200e9 / 10e6, rel=0.05)


CHANGES = ("--add-disk-at", "1d:150GB", "--drain-at", "60h:/data2", "--daily-wave", "30")


def test_disks_that_change_are_reported(simulate, document):
    found = document(*SMALL, *KEEP, *CHANGES)
    added, drained = found["changes"]
    assert (added["disk"], added["change"], added["at_seconds"]) == (4, "add", DAY)
    assert (added["empty_seconds"], added["forecast_seconds"]) == (None, None)
    assert added["retention_before_seconds"]["median"] == pytest.approx(0.85 * 300e9 / 10e6, rel=0.15)
    assert (drained["disk"], drained["change"], drained["at_seconds"]) == (2, "drain", 2.5 * DAY)
    took = drained["empty_seconds"] - drained["at_seconds"]
    assert drained["forecast_seconds"] == pytest.approx(took, rel=0.1)
    assert found["retention_seconds"]["median"] == pytest.approx(0.85 * 350e9 / 10e6, rel=0.15)
    assert found["scenario"]["daily_wave_percent"] == 30
    assert [disk["total_bytes"] for disk in found["disks"]] == [100 * 10**9] * 3 + [150 * 10**9]
    _, out, _ = simulate(*SMALL, *KEEP, *CHANGES)
    assert out.startswith("3 disks, 300GB in all, 10MB/s with daily waves of 30% in segments of 1GiB, ")
    assert "\n/data4 (150GB) is added after 24.0 h. In the day before the change, the log reached back " in out
    assert "\n/data2 drains from 2.5 d on, and is empty after 2." in out


def test_a_disk_that_is_added_is_as_large_as_the_first(document):
    found = document(*SMALL, *KEEP, "--add-disk-at", "36h", "--drain-at", "2d:4")
    assert found["disks"][3]["total_bytes"] == 100 * 10**9
    assert found["disks"][3]["segments"] == 0


def test_a_drain_that_does_not_end_is_reported(simulate):
    _, out, _ = simulate(*SMALL, *KEEP, "--drain-at", "47h:1", "--days", "2")
    assert "a disk still drains at the end" in out
    assert "/data1 drains from 47.0 h on, and is not empty at the end: " in out


def test_no_room_at_all(document):
    found = document("--disks", "100GB", "--ingest", "10MB/s", "--foreign", "1:95GB", "--days", "1")
    assert {"refused", "foreign-data"} <= codes(found)
    assert found["refused"] == {"creates": 1, "seconds": DAY}


def test_a_broker_that_cannot_keep_up_is_explained(document):
    found = document("--disks", "2x11GB", "--ingest", "60kB/s", "--segment", "1MiB", "--days", "6")
    assert "slow-expiry" in codes(found)


def test_too_short_a_time_is_told_with_a_longer_one(simulate):
    status, out, _ = simulate("--disks", "2x20TB", "--ingest", "10MB/s", "--days", "1")
    assert status == ExitCode.OK
    assert "Nothing is removed in this time" in out
    assert "--days 79" in out
    status, out, _ = simulate("--disks", "2x20TB", "--ingest", "10MB/s", "--days", "1", "--quiet")
    assert "--days" not in out


def write(path, size_bytes):
    with path.open("wb") as file:
        file.write(bytes(size_bytes))
        file.flush()
        os.fsync(file.fileno())


@pytest.mark.root
def test_disks_of_a_configuration_are_measured(document, disk_farm, workdir):
    disks = [disk_farm.add(), disk_farm.add(size_bytes=128 * MIB)]
    write(disks[0].path / f"{0:020d}", 8 * MIB)
    write(disks[1].path / "other", 30 * MIB)
    file = workdir / "demo.toml"
    paths = "".join(f'[[disks]]\npath = "{disk.path}"\n' for disk in disks)
    thresholds = "[thresholds]\nforce = 80\n"
    rules = '[retention]\nmode = "filesystem"\nreserved = "1000h"\ndelete_when = "04"\n'
    head = 'mountpoint = "/mnt/log"\nsegment_size = "1MiB"\ntrigger = "any"\n'
    file.write_text(head + thresholds + rules + paths)

    found = document("--config", str(file), "--ingest", "10kB/s", "--days", "1")
    first, second = found["disks"]
    assert (first["path"], second["path"]) == tuple(str(disk.path) for disk in disks)
    assert 40 * MIB < first["total_bytes"] < 64 * MIB < second["total_bytes"] < 128 * MIB
    assert first["foreign_bytes"] < 2 * MIB
    assert 30 * MIB <= second["foreign_bytes"] < 33 * MIB
    assert first["thresholds"]["force"] == 80
    assert (found["scenario"]["mode"], found["scenario"]["trigger"]) == ("filesystem", "any")

    planned = document(
        "--config", str(file), "--disks", "2x1GB", "--trigger", "all", "--ingest", "10kB/s", "--days", "1"
    )
    assert [disk["total_bytes"] for disk in planned["disks"]] == [10**9, 10**9]
    assert planned["disks"][0]["thresholds"]["force"] == 80
    assert planned["scenario"]["trigger"] == "all"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--ingest", "1MB/s"), "no disks are given"),
        (("--disks", "12x", "--ingest", "1MB/s"), "--disks: '12x' is not a size"),
        (("--disks", "5TB,-1TB", "--ingest", "1MB/s"), "--disks: '-1TB' is not a disk"),
        (("--disks", "5TB,,5TB", "--ingest", "1MB/s"), "--disks: '' is not a disk"),
        (("--disks", "12x5tb", "--ingest", "1MB/s"), 'write "5TB"'),
        (("--disks", "0x5TB", "--ingest", "1MB/s"), "1 to 1000 disks"),
        (("--disks", "2000x5TB", "--ingest", "1MB/s"), "1 to 1000 disks"),
        (("--disks", "0TB", "--ingest", "1MB/s"), "larger than 0"),
        (("--disks", "5TB", "--ingest", "1MB"), "not a rate"),
        (("--disks", "5TB", "--ingest", "fast/s"), "--ingest: 'fast' is not a size"),
        (("--disks", "5TB", "--ingest", "0MB/s"), "rate above 0"),
        (("--disks", "5TB"), "--ingest"),
        ((*SMALL, "--segment", "3GiB"), "--segment: 3GiB"),
        ((*SMALL, "--segment", "1000"), "multiple of 4096"),
        ((*SMALL, "--force", "99"), "--force: force = 99 is out of range; set it to 30 to 85 percent"),
        ((*SMALL, "--resume", "85"), "--resume: resume = 85 is not below force"),
        ((*SMALL, "--foreign", "4:1GB"), "DISK being 1 to 3"),
        ((*SMALL, "--foreign", "1GB"), "write DISK:SIZE"),
        ((*SMALL, "--foreign", "1:1TB"), "does not fit on /data1"),
        ((*SMALL, "--add-disk-at", "5TB"), "--add-disk-at: '5TB' is not a duration"),
        ((*SMALL, "--add-disk-at", "2d:5XB"), "--add-disk-at: '5XB' is not a size"),
        ((*SMALL, "--add-disk-at", "2d:0GB"), "size above 0"),
        ((*SMALL, "--add-disk-at", "0d"), "give a later time"),
        ((*SMALL, "--add-disk-at", "9d", "--days", "9"), "give more --days"),
        ((*SMALL, "--add-disk-at", "1000000d"), "and more cannot be simulated; give times below 36500d"),
        ((*SMALL, "--daily-wave", "30%"), "--daily-wave: '30%' is not a percentage; write a number from 0 to 99"),
        ((*SMALL, "--drain-at", "2d:4"), "DISK being 1 to 3"),
        ((*SMALL, "--drain-at", "2:1"), "--drain-at: '2' is not a duration"),
        ((*SMALL, "--drain-at", "2d:1", "--drain-at", "3d:/data1"), "give each disk once"),
        (
            (*SMALL, "--drain-at", "2d:1", "--drain-at", "2d:2", "--drain-at", "2d:3"),
            "after 2.0 d every disk drains",
        ),
        ((*SMALL, "--add-disk-at", "3d", "--drain-at", "2d:4"), "/data4: drains before it is added"),
        ((*SMALL, "--daily-wave", "100"), "--daily-wave"),
        ((*SMALL, "--mode", "filesystem"), "needs --reserved and --delete-when"),
        ((*SMALL, "--mode", "lazy"), "lazy"),
        ((*SMALL, "--reserved", "72"), "--reserved: '72' is not a duration"),
        ((*SMALL, "--reserved", "72s"), "too short"),
        ((*SMALL, "--delete-when", "4,16"), "--delete-when: '4,16' is not a list of hours"),
        ((*SMALL, "--days", "0"), "--days"),
        ((*SMALL, "--days", "36500", "--segment", "1MiB"), "fewer --days"),
        (("--config", "./absent.toml", "--ingest", "1MB/s"), "no such file"),
    ],
)
def test_bad_input_is_one_line_and_status_2(simulate, arguments, said):
    status, out, err = simulate(*arguments)
    assert status == ExitCode.USAGE
    assert out == ""
    assert said in err
    assert err.count("\n") == 1


def test_a_disk_that_cannot_be_measured(simulate, workdir):
    file = workdir / "demo.toml"
    file.write_text(f'mountpoint = "/mnt/log"\n[[disks]]\npath = "{workdir}/absent"\n')
    status, _, err = simulate("--config", str(file), "--ingest", "1MB/s")
    assert status == ExitCode.USAGE
    assert "absent: cannot be measured (No such file or directory)" in err


def test_help_has_the_exit_statuses(simulate):
    status, out, _ = simulate("--help")
    assert status == 0
    assert "EXIT STATUS" in out


@pytest.mark.parametrize(
    ("line", "status", "said"),
    [
        ("--dry-run", ExitCode.UNREACHABLE, "no mount is running"),
        ("--dry-run nobody", ExitCode.USAGE, "nobody: no such mount or configuration"),
        ("--dry-run --json nobody", ExitCode.USAGE, "nobody: no such mount or configuration"),
        ("--json --dry-run nobody", ExitCode.USAGE, "nobody: no such mount or configuration"),
        ("--dry-run nobody --json", ExitCode.USAGE, "nobody: no such mount or configuration"),
        ("preview nobody", ExitCode.USAGE, "nobody: no such mount or configuration"),
        ("nobody --dry-run", ExitCode.USAGE, "--dry-run comes after the name; write `retention --dry-run nobody`"),
        ("simulate --dry-run", ExitCode.USAGE, "No such option: --dry-run"),
        ("preview --dry-run", ExitCode.USAGE, "No such option: --dry-run"),
        ("--dry-run one two", ExitCode.USAGE, "unexpected extra argument"),
        ("--json", ExitCode.USAGE, "Missing command"),
        ("simulat", ExitCode.USAGE, "Did you mean 'simulate'?"),
    ],
)
def test_dry_run_is_an_option_of_the_group(capsys, monkeypatch, workdir, line, status, said):
    monkeypatch.setenv("COMMITLOGFS_RUNTIME_DIR", str(workdir))
    assert main(["retention", *line.split()]) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize("line", ["--dry-run simulate", "--json simulate"])
def test_options_of_the_group_leave_simulate_alone(capsys, line):
    assert main(["retention", *line.split(), *SMALL, *KEEP, "--days", "3"]) == ExitCode.FINDINGS
    out = capsys.readouterr().out
    assert ("scenario" in json.loads(out)) if "--json" in line else "The log reaches back" in out


def test_the_help_of_the_group_shows_dry_run(capsys):
    assert main(["retention", "--help"]) == 0
    assert "--dry-run" in capsys.readouterr().out.partition("Commands")[0].partition("Options")[2]
