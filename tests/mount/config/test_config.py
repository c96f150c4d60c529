import os
from dataclasses import asdict
from typing import get_args

import pytest

from commitlogfs.console.errors import UsageError
from commitlogfs.console.exit_status import ExitCode
from commitlogfs.mount.config import model as config_module
from commitlogfs.mount.config.errors import ConfigError
from commitlogfs.mount.config.model import (
    Config,
    DiskConfig,
    Placement,
    config_path,
    default_config_path,
    disks_from_list,
    load_config,
    parse_config,
    quick_config,
)
from commitlogfs.mount.config.retention import RetentionTable
from commitlogfs.store.placement import POLICIES
from commitlogfs.store.retention import Mode, RetentionRules, Trigger
from commitlogfs.store.thresholds import Thresholds

TOP = 'mountpoint = "/var/rocketmq/store/commitlog"\n'
DISK = '[[disks]]\npath = "/data1/commitlog"\n'
DISK2 = '[[disks]]\npath = "/data2/commitlog"\n'
FULL = """
mountpoint = "/mnt//log/"
segment_size = "64MiB"
placement = "weighted"
trigger = "any"
on_missing = "degraded"
allow_other = false
refuse_reads_when_full = true

[retention]
mode = "filesystem"
reserved = "72h"
delete_when = "04;16"
force_after = "500ms"
grace = "0s"
punch = true
batch = 1
interval = "1s"

[thresholds]
clean = 60
force = 80
full = 88
resume = 75
min_free = "10GB"

[[disks]]
path = "/data1/commitlog/"
weight = 2

[[disks]]
path = "/data2/commitlog"
readonly = true
[disks.thresholds]
clean = 50
force = 70
resume = 65
"""


def _retention(lines):
    return f"{TOP}[retention]\n{lines}\n{DISK}"


def _by_age(reserved="72h", delete_when="04"):
    return _retention(f'mode = "filesystem"\nreserved = "{reserved}"\ndelete_when = "{delete_when}"')


# (name, TOML, what the one line has to hold, besides the file's name)
BAD = [
    ("no mountpoint", DISK, ["mountpoint: missing", 'mountpoint = "/var']),
    ("no disks", TOP, ["disks: missing", "[[disks]]"]),
    ("empty disks", TOP + "disks = []", ["disks: no disk is given", "[[disks]]"]),
    ("one pair of brackets", TOP + '[disks]\npath = "/a"', ["disks: must be a list", "two brackets"]),
    ("list of paths", TOP + 'disks = ["/a"]', ["disks[0]: '/a' is not a table", "[[disks]]"]),
    ("disk without path", TOP + "[[disks]]\nreadonly = true", ["disks[0].path: missing", "path ="]),
    ("misspelt key", TOP + 'segmentsize = "1GiB"\n' + DISK, ["segmentsize: unknown key", "mean segment_size?"]),
    ("dashes", TOP + 'on-missing = "refuse"\n' + DISK, ["on-missing: unknown key", "mean on_missing?"]),
    ("misspelt threshold", TOP + "[thresholds]\nfroce = 80\n" + DISK, ["thresholds.froce: unknown", "mean force?"]),
    (
        "misspelt threshold of a disk",
        TOP + DISK + DISK2 + "[disks.thresholds]\nful = 80\n",
        ["disks[1].thresholds.ful: unknown key", "mean full?"],
    ),
    ("wrong table", TOP + "force = 80\n" + DISK, ["force: unknown key", "belongs in a [thresholds] table"]),
    ("key after a table", TOP + DISK + 'trigger = "any"', ["disks[0].trigger: unknown", "belongs at the top"]),
    ("hopeless key", TOP + "xyzzy = 1\n" + DISK, ["xyzzy: unknown key", "known here: mountpoint"]),
    ("no key", TOP + '"" = 1\n' + DISK, ["'': unknown key", "remove it"]),
    ("odd key", TOP + '"a\\nb" = 1\n' + DISK, ["'a\\nb': unknown key"]),
    ("passthrough: no such way", TOP + 'passthrough = "on"\n' + DISK, ["passthrough: 'on'"]),
    (
        "retention no table",
        TOP + 'retention = "off"\n' + DISK,
        ["retention: 'off' is not a table; write [retention]"],
    ),
    (
        "a disk's thresholds no table",
        TOP + DISK + "thresholds = 85\n",
        ["disks[0].thresholds: 85 is not a table; write [disks.thresholds]"],
    ),
    (
        "retention of a disk",
        TOP + DISK + "[disks.retention]\npunch = false\n",
        ["disks[0].retention: unknown key; retention is for the whole log: write [retention] as a table of"],
    ),
    ("a key of retention in a disk", TOP + DISK + "punch = false\n", ["disks[0].punch", "in a [retention] table"]),
    ("a key of retention at the top", TOP + 'mode = "off"\n' + DISK, ["mode: unknown", "in a [retention] table"]),
    ("trigger in retention", _retention('trigger = "any"'), ["retention.trigger: unknown", "belongs at the top"]),
    ("a threshold in retention", _retention("force = 80"), ["retention.force", "in a [thresholds] table: move"]),
    ("misspelt key of retention", _retention('forceafter = "30s"'), ["retention.forceafter", "mean force_after?"]),
    (
        "no such mode",
        _retention('mode = "filesytem"'),
        ["retention.mode: 'filesytem' is not known", '"filesystem"?'],
    ),
    ("mode no text", _retention("mode = false"), ["retention.mode: false is not known", '"cooperative", "files']),
    (
        "by age without reserved",
        _retention('mode = "filesystem"\ndelete_when = "04"'),
        ["retention.reserved: missing (with mode = 'filesystem', commitlogfs expires", 'add reserved = "72h"'],
    ),
    (
        "by age without delete_when",
        _retention('mode = "filesystem"\nreserved = "72h"'),
        ["retention.delete_when: missing (with mode = 'filesystem', commitlogfs expires", 'add delete_when = "04"'],
    ),
    (
        "reserved is the broker's",
        _retention('reserved = "72h"'),
        ["retention.reserved: has no effect with mode = 'cooperative', where the broker", 'mode = "filesystem"'],
    ),
    (
        "delete_when with nothing to delete",
        _retention('mode = "off"\ndelete_when = "04"'),
        ["retention.delete_when: has no effect with mode = 'off', where nothing is deleted", "remove it"],
    ),
    ("duration without unit", _retention("force_after = 30"), ["retention.force_after: 30 is not a duration"]),
    ("duration below zero", _retention('grace = "-1s"'), ["retention.grace: '-1s' is not a duration"]),
    ("seconds for hours", _by_age(reserved="72s"), ["retention.reserved: 72s is too short", "at least 1h"]),
    ("hour 24", _by_age(delete_when="04;24"), ["retention.delete_when: '04;24'", "hour 24 does not", "00 to 23"]),
    (
        "a blank between hours",
        _by_age(delete_when="04; 16"),
        ["retention.delete_when: '04; 16' is not a list", '"04;16"'],
    ),
    ("no hour", _by_age(delete_when=""), ["retention.delete_when: '' is not a list of hours"]),
    ("hours without quotes", _retention("delete_when = 4"), ["retention.delete_when: 4 is not a list of hours"]),
    (
        "an endless interval",
        _retention('interval = "11m"'),
        ["retention.interval: 11m is too long; write at most 10m"],
    ),
    ("a breathless interval", _retention('interval = "999ms"'), ["retention.interval: 999ms is too short", "1s"]),
    ("batch zero", _retention("batch = 0"), ["retention.batch: 0 is too small; write at least 1", 'mode = "off"']),
    ("batch a text", _retention('batch = "10"'), ["retention.batch: '10' is not a whole number"]),
    ("punch a text", _retention('punch = "no"'), ["retention.punch: 'no' is not true or false"]),
    ("number for a text", "mountpoint = 3\n" + DISK, ["mountpoint: 3 is not a text", "quotes"]),
    ("text for a bool", TOP + 'allow_other = "yes"\n' + DISK, ["allow_other: 'yes' is not true or false"]),
    ("text for a percent", TOP + '[thresholds]\nforce = "85"\n' + DISK, ["thresholds.force: '85' is not a whole"]),
    ("fraction", TOP + "[thresholds]\nforce = 84.5\n" + DISK, ["thresholds.force: 84.5 is not a whole number"]),
    ("bool for a percent", TOP + "[thresholds]\nforce = true\n" + DISK, ["thresholds.force: true is not"]),
    ("thresholds no table", TOP + "thresholds = 85\n" + DISK, ["thresholds: 85 is not a table", "[thresholds]"]),
    ("unknown placement", TOP + 'placement = "roundrobin"\n' + DISK, ["placement: 'roundrobin'", '"round-robin"?']),
    ("unknown trigger", TOP + 'trigger = "some"\n' + DISK, ["trigger: 'some' is not known", '"all", "any"']),
    ("unknown on_missing", TOP + 'on_missing = "go"\n' + DISK, ["on_missing: 'go'", '"refuse", "degraded"']),
    ("size without unit letter", TOP + 'segment_size = "1G"\n' + DISK, ["segment_size: '1G'", '"1GiB"']),
    ("size true", TOP + "segment_size = true\n" + DISK, ["segment_size: True is not a size"]),
    ("size odd", TOP + "segment_size = 5000\n" + DISK, ["5000 is not a multiple of 4096", "4096 or 8192"]),
    ("size tiny", TOP + "segment_size = 1\n" + DISK, ["segment_size: 1 is not a multiple", "sizes are 4096"]),
    ("size zero", TOP + "segment_size = 0\n" + DISK, ["segment_size: 0B is not a segment size", "1GiB"]),
    ("size negative", TOP + "segment_size = -4096\n" + DISK, ["segment_size: -4096 is negative"]),
    ("size of a long", TOP + 'segment_size = "2GiB"\n' + DISK, ["segment_size: 2GiB is too large", "2147479552"]),
    ("relative disk", TOP + '[[disks]]\npath = "data1"', ["disks[0].path: 'data1' is not absolute"]),
    ("relative mountpoint", 'mountpoint = "log"\n' + DISK, ["mountpoint: 'log' is not absolute"]),
    ("climbing path", TOP + '[[disks]]\npath = "/a/../b"', ["disks[0].path: '/a/../b' has '..'"]),
    ("newline in a path", TOP + '[[disks]]\npath = "/a\\nb"', ["disks[0].path: '/a\\nb' has a control"]),
    ("disk twice", TOP + DISK + DISK, ["disks[1].path: /data1/commitlog is disks[0] again"]),
    (
        "disk twice, spelt differently",
        TOP + DISK + '[[disks]]\npath = "//data1/./commitlog/"',
        ["disks[1].path: /data1/commitlog is disks[0] again"],
    ),
    (
        "disk in a disk",
        TOP + DISK + '[[disks]]\npath = "/data1"',
        ["disks[1].path: /data1 and", "overlap"],
    ),
    (
        "disk in the mountpoint",
        'mountpoint = "/data1"\n' + DISK,
        ["disks[0].path: /data1/commitlog is inside the mountpoint /data1"],
    ),
    (
        "disk is the mountpoint",
        'mountpoint = "/data1/commitlog/"\n' + DISK,
        ["disks[0].path", "inside the mountpoint"],
    ),
    ("mountpoint is the root", 'mountpoint = "/"\n' + DISK, ["disks[0].path", "inside the mountpoint /"]),
    (
        "mountpoint in a disk",
        'mountpoint = "/data1/commitlog/m"\n' + DISK,
        ["mountpoint: /data1/commitlog/m is inside disks[0]"],
    ),
    ("weight unused", TOP + DISK + "weight = 2", ["disks[0].weight: has no effect", 'placement = "weighted"']),
    ("weight zero", TOP + 'placement = "weighted"\n' + DISK + "weight = 0", ["disks[0].weight: 0", "above 0"]),
    ("weight nan", TOP + 'placement = "weighted"\n' + DISK + "weight = nan", ["disks[0].weight: nan is not a"]),
    (
        "weight text",
        TOP + 'placement = "weighted"\n' + DISK + 'weight = "2"',
        ["weight: '2' is not a number"],
    ),
    ("force too high", TOP + "[thresholds]\nforce = 95\n" + DISK, ["thresholds.force: 95", "30 to 85 percent"]),
    ("percent negative", TOP + "[thresholds]\nresume = -1\n" + DISK, ["thresholds.resume: -1 is negative"]),
    (
        "a default in the way",
        TOP + "[thresholds]\nfull = 80\n" + DISK,
        ["thresholds.force: 85 (the default) is above full = 80", "30 to 80 percent"],
    ),
    (
        "a disk against [thresholds]",
        TOP + "[thresholds]\nresume = 80\n" + DISK + "[disks.thresholds]\nforce = 80\n",
        ["disks[0].thresholds.resume: 80 (from [thresholds]) is not below force = 80", "10 to 79 percent"],
    ),
    ("min_free", TOP + '[thresholds]\nmin_free = "ten"\n' + DISK, ["thresholds.min_free: 'ten' is not a size"]),
    ("broken TOML", "mountpoint = \n", ["not valid TOML", "line 1"]),
    ("key twice", TOP + TOP, ["not valid TOML", "line 2"]),
    ("an array that never ends", TOP + DISK + "tags = [\n 1,\n\n", ["not valid TOML", "line 4; close"]),
    ("a text that never ends", TOP + DISK + 'note = """a\nb\n', ["not valid TOML", "line 4; close"]),
    ("a table that never ends", TOP + "[thresholds", ["not valid TOML", "line 2"]),
    ("bottomless TOML", "a = " + "[" * 5000, ["not valid TOML"]),
    ("date", "mountpoint = 1979-05-27\n" + DISK, ["mountpoint: 1979-05-27 is not a text"]),
]


@pytest.fixture
def directories(tmp_path, monkeypatch):
    """A machine of our own: (the system's directory, the user's), with the tests' user being no root."""
    system, home = tmp_path / "etc", tmp_path / "xdg"
    own = home / "commitlogfs"
    system.mkdir()
    own.mkdir(parents=True)
    monkeypatch.setattr(config_module, "SYSTEM_DIRECTORY", system)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    return system, own


def test_minimal_file_gets_the_documented_defaults(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    path = tmp_path / "broker-a.toml"
    path.write_text(TOP + DISK)
    assert load_config(path) == Config(
        name="broker-a",
        mountpoint="/var/rocketmq/store/commitlog",
        disks=(DiskConfig("/data1/commitlog", readonly=False, weight=1.0, thresholds=Thresholds()),),
        segment_size=2**30,
        placement="round-robin",
        on_missing="refuse",
        allow_other=True,
        refuse_reads_when_full=False,
        thresholds=Thresholds(),
        retention=RetentionRules(
            mode=Mode.COOPERATIVE,
            trigger=Trigger.ALL,
            force_after_s=30,
            grace_s=120,
            punch=True,
            batch=10,
            interval_s=10,
        ),
        file=str(path),
        given=frozenset({"mountpoint", "disks[0].path"}),
    )


def test_full_file():
    config = parse_config(FULL, "demo", "demo.toml")
    common = Thresholds(clean=60, force=80, full=88, resume=75, min_free_bytes=10**10)
    assert config.mountpoint == "/mnt/log"
    assert config.segment_size == 2**26
    assert (config.placement, config.on_missing) == ("weighted", "degraded")
    assert config.allow_other is False
    assert config.refuse_reads_when_full is True
    assert config.thresholds == common
    assert config.retention == RetentionRules(
        mode=Mode.FILESYSTEM,
        trigger=Trigger.ANY,
        reserved_s=72 * 3600,
        delete_when=frozenset({4, 16}),
        force_after_s=0.5,
        grace_s=0,
        punch=True,
        batch=1,
        interval_s=1,
    )
    assert config.disks == (
        DiskConfig("/data1/commitlog", weight=2.0, thresholds=common),
        DiskConfig(
            "/data2/commitlog",
            readonly=True,
            thresholds=Thresholds(clean=50, force=70, full=88, resume=65, min_free_bytes=10**10),
        ),
    )


@pytest.mark.parametrize(("uid", "allowed"), [(0, True), (1000, False)])
def test_others_may_use_roots_mounts_by_default(uid, allowed, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    assert parse_config(TOP + DISK, "demo", "demo.toml").allow_other is allowed
    assert parse_config(TOP + "allow_other = true\n" + DISK, "demo", "demo.toml").allow_other is True


def test_resume_follows_a_disks_own_force():
    config = parse_config(TOP + DISK + "[disks.thresholds]\nclean = 60\nforce = 70\n", "demo", "demo.toml")
    assert config.disks[0].thresholds.resume == 68
    assert config.thresholds.resume == 83


@pytest.mark.parametrize(
    "line", ['force_after = "0s"', 'grace = "0s"', 'interval = "10m"', "batch = 1", 'grace = "30d"']
)
def test_times_and_counts_at_their_limits(line):
    parse_config(_retention(line), "demo", "demo.toml")


@pytest.mark.parametrize(("line", "switch"), [('mode = "off"', "mode"), ("punch = false", "punch")])
def test_one_edit_is_enough_to_stop_it(line, switch):
    tuned = 'force_after = "1m"\ngrace = "5m"\nbatch = 20\ninterval = "5s"\n'
    before = parse_config(_retention(tuned), "demo", "demo.toml").retention
    after = parse_config(_retention(tuned + line), "demo", "demo.toml").retention
    assert [key for key in asdict(before) if getattr(before, key) != getattr(after, key)] == [switch]


def test_every_contradiction_of_retention_is_named_at_once():
    with pytest.raises(ConfigError) as caught:
        parse_config(_retention('mode = "filesystem"'), "demo", "demo.toml")
    assert [problem.key for problem in caught.value.problems] == ["retention.reserved", "retention.delete_when"]


@pytest.mark.parametrize(("text", "fragments"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_a_bad_file_is_one_readable_line(text, fragments):
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "demo", "/etc/commitlogfs/demo.toml")
    message = str(caught.value)
    assert message.startswith("/etc/commitlogfs/demo.toml: ")
    for fragment in fragments:
        assert fragment in message
    assert message.isprintable(), "a line feed or control character got through"
    assert len(message) < 250
    assert len(caught.value.problems) == 1
    assert isinstance(caught.value, UsageError)
    assert caught.value.exit_code is ExitCode.USAGE


def test_several_problems_are_counted_and_get_a_line_each():
    with pytest.raises(ConfigError) as caught:
        parse_config('mountpoint = 3\nplcement = "modulo"\n' + DISK, "demo", "demo.toml")
    heading, *lines = str(caught.value).splitlines()
    assert heading == "demo.toml: 2 problems"
    assert sorted(lines) == [
        "  mountpoint: 3 is not a text in quotes; put it in quotes",
        "  plcement: unknown key; did you mean placement?",
    ]


def test_a_long_value_does_not_flood_the_line():
    with pytest.raises(ConfigError) as caught:
        parse_config(TOP + f'placement = "{"x" * 5000}"\n' + DISK, "demo", "demo.toml")
    assert len(str(caught.value)) < 250


def test_unreadable_files_are_one_line(tmp_path):
    not_utf8 = tmp_path / "latin.toml"
    not_utf8.write_bytes(b'# one\nmountpoint = "/\xe9"\n')
    directory = tmp_path / "directory.toml"
    directory.mkdir()
    fifo = tmp_path / "fifo.toml"
    os.mkfifo(fifo)
    odd_name = tmp_path / "my broker.toml"
    odd_name.write_text(TOP + DISK)
    for path, fragment in [
        (tmp_path / "absent.toml", "no such file"),
        (not_utf8, "line 2 is not UTF-8"),
        (directory, "cannot be read (Is a directory)"),
        (fifo, "cannot be read (is not a regular file)"),
        (odd_name, "'my broker' cannot be a mount's name"),
    ]:
        with pytest.raises(ConfigError) as caught:
            load_config(path)
        assert str(caught.value).startswith(f"{path}: ")
        assert fragment in str(caught.value)
        assert "\n" not in str(caught.value)


def test_placements_and_modes_are_the_stores():
    assert set(get_args(Placement)) == set(POLICIES)
    assert set(get_args(RetentionTable.model_fields["mode"].annotation)) == {mode.value for mode in Mode}


def test_a_name_is_looked_for_in_the_users_directory_and_then_the_systems(directories):
    system, own = directories
    (system / "a.toml").touch()
    assert config_path("a") == system / "a.toml"
    (own / "a.toml").touch()
    assert config_path("a") == own / "a.toml"


def test_root_uses_the_systems_directory_only(directories, monkeypatch):
    system, own = directories
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    (own / "a.toml").touch()
    with pytest.raises(ConfigError, match="no such configuration") as caught:
        config_path("a")
    assert str(system / "a.toml") in str(caught.value)
    assert str(own) not in str(caught.value)


def test_a_relative_xdg_directory_is_ignored(directories, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/someone")
    with pytest.raises(ConfigError, match=r"/home/someone/\.config/commitlogfs/a\.toml"):
        config_path("a")


@pytest.mark.parametrize("text", ["./a", "/etc/x/a.conf", "a.toml"])
def test_paths_are_taken_as_they_are(text):
    assert str(config_path(text)) == text.removeprefix("./")


@pytest.mark.parametrize("text", ["", "..", "-x", "a b", "a\nb", "x" * 65])
def test_odd_names_are_refused(text):
    with pytest.raises(ConfigError, match="not a name") as caught:
        config_path(text)
    assert "\n" not in str(caught.value)


def test_without_a_name_the_only_configuration_is_meant(directories):
    system, own = directories
    with pytest.raises(ConfigError, match="no configuration"):
        default_config_path()
    (own / "a.toml").touch()
    assert default_config_path() == own / "a.toml"
    (system / "b.toml").touch()
    with pytest.raises(ConfigError, match="several configurations; give one of a, b"):
        default_config_path()


def test_disks_from_list(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    disks = disks_from_list("/data1/,data2,../data3")
    assert [disk.path for disk in disks] == ["/data1", f"{tmp_path}/data2", f"{tmp_path.parent}/data3"]


@pytest.mark.parametrize(
    ("text", "fragment"),
    [("", "empty"), ("/a,,/b", "empty"), ("/a,", "empty"), ("/a,/a/", "again"), ("/a,/a/b", "overlap")],
)
def test_bad_disk_lists(text, fragment):
    with pytest.raises(ConfigError, match=fragment) as caught:
        disks_from_list(text)
    assert "\n" not in str(caught.value)


def test_quick_config_deletes_as_a_file_without_retention_does():
    config = quick_config("first-try", "/mnt/log", "/data1,/data2")
    assert config.retention == parse_config(TOP + DISK, "demo", "demo.toml").retention == RetentionRules()


def test_quick_config_keeps_the_files_rules():
    config = quick_config("first-try", "/mnt/log", "/data1,/data2", 2**20)
    assert (config.name, config.mountpoint, config.segment_size) == ("first-try", "/mnt/log", 2**20)
    assert [disk.path for disk in config.disks] == ["/data1", "/data2"]
    with pytest.raises(ConfigError, match="inside the mountpoint"):
        quick_config("first-try", "/data1", "/data1/a,/data2")
    with pytest.raises(ConfigError, match="multiple of 4096"):
        quick_config("first-try", "/mnt/log", "/data1", 5000)
