import json
import os
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from commitlogfs.console.errors import RefusedError, UsageError
from commitlogfs.console.exit_status import ExitCode
from commitlogfs.mount.commands.config import app
from commitlogfs.mount.config import model as config_module
from commitlogfs.mount.config.errors import ConfigError
from commitlogfs.mount.config.model import parse_config

TEXT = """\
mountpoint = "/mnt/log"
placement = "weighted"
[thresholds]
force = 80
[[disks]]
path = "/data1/é \\"x\\""
weight = 2
[[disks]]
path = "/data2"
[disks.thresholds]
clean = 60
force = 70
"""
BROKER = "storePathRootDir=/store\nstorePathCommitLog=/data1/c,/data2/c\n"


@pytest.fixture
def invoke():
    runner = CliRunner()
    return lambda *args: runner.invoke(app, [str(arg) for arg in args])


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "demo.toml"
    path.write_text(TEXT)
    return path


@pytest.fixture
def broker_conf(tmp_path):
    path = tmp_path / "broker.conf"
    path.write_text(BROKER)
    return path


def test_check_says_what_it_found(invoke, file):
    result = invoke("check", file)
    assert result.exit_code == 0
    assert result.stdout == f"{file}: ok: 2 disks, mountpoint /mnt/log, retention cooperative\n"


def test_check_without_a_name_takes_the_only_configuration(invoke, file, monkeypatch):
    monkeypatch.setattr(config_module, "SYSTEM_DIRECTORY", file.parent)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert invoke("check").stdout.startswith(f"{file}: ok")
    assert invoke("check", "demo").stdout.startswith(f"{file}: ok")


def test_check_of_a_bad_file_is_a_usage_error(invoke, file):
    file.write_text(TEXT.replace("placement", "plcement"))
    result = invoke("check", file)
    assert isinstance(result.exception, ConfigError)
    assert result.exception.exit_code is ExitCode.USAGE
    assert "plcement: unknown key" in str(result.exception)


def test_show_marks_defaults_and_loads_again(invoke, file):
    result = invoke("show", file)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    for line in [
        'segment_size = "1GiB"  # default',
        'placement = "weighted"',
        "clean = 75  # default",
        "force = 80",
        "resume = 78  # default: force - 2",
        "weight = 2.0",
        "weight = 1.0  # default",
        "readonly = false  # default",
        "full = 90  # default",
    ]:
        assert line in lines
    before, after = parse_config(TEXT, "demo", ""), parse_config(result.stdout, "demo", "")
    assert replace(after, given=frozenset()) == replace(before, given=frozenset())


@pytest.mark.parametrize(
    ("retention", "lines"),
    [
        (
            'mode = "filesystem"\nreserved = "36h"\ndelete_when = "16;4"\nbatch = 3\n',
            [
                'mode = "filesystem"',
                'reserved = "36h"',
                'delete_when = "04;16"',
                'force_after = "30s"  # default',
                'grace = "2m"  # default',
                "punch = true  # default",
                "batch = 3",
                'interval = "10s"  # default',
            ],
        ),
        (
            "punch = false\n",
            [
                'mode = "cooperative"  # default',
                'force_after = "30s"  # default',
                'grace = "2m"  # default',
                "punch = false",
                "batch = 10  # default",
                'interval = "10s"  # default',
            ],
        ),
    ],
)
def test_show_retention_as_it_loads_again(invoke, file, retention, lines):
    file.write_text(TEXT.replace("[[disks]]", f"[retention]\n{retention}[[disks]]", 1))
    shown = invoke("show", file).stdout
    start = shown.splitlines().index("[retention]") + 1
    assert shown.splitlines()[start : start + len(lines) + 1] == [*lines, ""]
    before, after = parse_config(file.read_text(), "demo", ""), parse_config(shown, "demo", "")
    assert replace(after, given=frozenset()) == replace(before, given=frozenset())
    as_json = json.loads(invoke("show", file, "--json").stdout)["retention"]
    assert as_json["mode"] == before.retention.mode.value
    assert as_json["delete_when"] == ([4, 16] if "reserved" in retention else None)
    assert as_json["reserved"] == (36 * 3600 if "reserved" in retention else None)


def test_show_scrub_as_it_loads_again(invoke, file):
    assert '[scrub]\nevery = "7d"  # default\nrate = ""  # default\nwindow = ""  # default\n' in (
        invoke("show", file).stdout
    )
    table = '[scrub]\nevery = "36h"\nrate = "10MiB"\nwindow = "22-06"\n'
    file.write_text(TEXT.replace("[[disks]]", f"{table}[[disks]]", 1))
    assert table in invoke("show", file).stdout
    as_json = json.loads(invoke("show", file, "--json").stdout)["scrub"]
    assert as_json == {"every": 36 * 3600, "rate": 10 * 2**20, "window": "22-06"}


def test_show_tells_what_a_disk_inherits(invoke, file):
    file.write_text(TEXT.replace("force = 80", "force = 80\nfull = 88"))
    assert "full = 88  # from [thresholds]" in invoke("show", file).stdout


def test_show_json(invoke, file):
    shown = json.loads(invoke("show", file, "--json").stdout)
    assert list(shown) == [
        "name",
        "file",
        "mountpoint",
        "segment_size",
        "placement",
        "trigger",
        "on_missing",
        "passthrough",
        "allow_other",
        "refuse_reads_when_full",
        "thresholds",
        "retention",
        "scrub",
        "disks",
        "defaults",
    ]
    assert shown["segment_size"] == 2**30
    assert shown["thresholds"] == {"clean": 75, "force": 80, "full": 90, "resume": 78, "min_free": 0}
    assert shown["disks"][1] == {
        "path": "/data2",
        "readonly": False,
        "weight": 1.0,
        "thresholds": {"clean": 60, "force": 70, "full": 90, "resume": 68, "min_free": 0},
    }
    assert shown["retention"] == {
        "mode": "cooperative",
        "reserved": None,
        "delete_when": None,
        "force_after": 30,
        "grace": 120,
        "punch": True,
        "batch": 10,
        "interval": 10,
    }
    assert "segment_size" in shown["defaults"]
    assert "retention.batch" in shown["defaults"]
    assert "retention.reserved" not in shown["defaults"], "it has no default"
    assert "disks[1].weight" in shown["defaults"]
    assert not {"placement", "mountpoint", "thresholds.force", "disks[0].weight"} & set(shown["defaults"])


def test_import_prints_toml_and_warns_apart(invoke, broker_conf):
    result = invoke("import", broker_conf)
    assert result.exit_code == 0
    assert [disk.path for disk in parse_config(result.stdout, "demo", "").disks] == ["/data1/c", "/data2/c"]
    assert result.stderr.startswith("commitlogfs: warning: the mountpoint /store/commitlog is proposed")


def test_import_writes_a_file_once(invoke, broker_conf, tmp_path):
    output = tmp_path / "new.toml"
    assert invoke("import", broker_conf, "--output", output).exit_code == 0
    written = output.read_text()
    assert parse_config(written, "new", "").mountpoint == "/store/commitlog"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broker.conf", "new.toml"]

    broker_conf.write_text(BROKER.replace("/store", "/other"))
    result = invoke("import", broker_conf, "--output", output)
    assert isinstance(result.exception, RefusedError)
    assert "--force" in str(result.exception)
    assert output.read_text() == written

    assert invoke("import", broker_conf, "--output", output, "--force").exit_code == 0
    assert parse_config(output.read_text(), "new", "").mountpoint == "/other/commitlog"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broker.conf", "new.toml"]


def test_import_never_writes_through_a_dangling_link(invoke, broker_conf, tmp_path):
    output, elsewhere = tmp_path / "new.toml", tmp_path / "elsewhere"
    output.symlink_to(elsewhere)
    assert isinstance(invoke("import", broker_conf, "--output", output).exception, RefusedError)
    assert not elsewhere.exists()


@pytest.mark.parametrize(
    ("exists", "options", "said"),
    [(False, [], "not written"), (True, [], "replacing it needs --force"), (True, ["--force"], "not written")],
)
def test_import_dry_run_writes_nothing(invoke, broker_conf, tmp_path, exists, options, said):
    output = tmp_path / "new.toml"
    if exists:
        output.write_text("mine")
    result = invoke("import", broker_conf, "--output", output, "--dry-run", *options)
    assert result.exit_code == 0
    assert "[[disks]]" in result.stdout
    assert said in result.stderr
    assert (output.read_text() if exists else output.exists()) == ("mine" if exists else False)


def test_import_that_needs_completion_is_a_finding(invoke, broker_conf):
    broker_conf.write_text("storePathCommitLog=/store/commitlog\n")
    result = invoke("import", broker_conf)
    assert result.exit_code == ExitCode.FINDINGS
    assert result.stderr.splitlines()[-1].startswith("commitlogfs: warning: to be completed: disks: missing")


def test_import_errors(invoke, broker_conf, tmp_path):
    for args, fragment in [
        (("import", tmp_path / "absent.conf"), "no such file"),
        (("import", broker_conf, "--output", tmp_path / "absent" / "x.toml"), "cannot be written (No such file"),
    ]:
        result = invoke(*args)
        assert isinstance(result.exception, UsageError)
        assert fragment in str(result.exception)
        assert "\n" not in str(result.exception)


@pytest.mark.parametrize("command", ["check", "show", "import"])
def test_help_has_the_exit_statuses(invoke, command):
    result = invoke(command, "--help")
    assert result.exit_code == 0
    assert "EXIT STATUS" in result.stdout
