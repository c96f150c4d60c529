import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlogfs.console.errors import UsageError
from commitlogfs.mount.config.errors import ConfigError
from commitlogfs.mount.config.import_broker import USUAL_MOUNTPOINT, import_broker_conf
from commitlogfs.mount.config.model import parse_config
from commitlogfs.store.broker_conf import PropertiesError, parse_properties
from commitlogfs.store.retention import Mode, RetentionRules
from commitlogfs.store.thresholds import Thresholds

MULTI = "storePathRootDir=/store\nstorePathCommitLog=/data1/commitlog,/data2/commitlog\n"
PROPOSAL = "the mountpoint /store/commitlog is proposed"


RETENTION_INTS = (
    "fileReservedTime",
    "deleteFileBatchMax",
    "deleteCommitLogFilesInterval",
    "destroyMapedFileIntervalForcibly",
    "cleanResourceInterval",
)


def uncomment_mode_filesystem(toml_text):
    """An operator imports the configuration of a log without a running broker."""
    for key in ('mode = "filesystem"', "reserved", "delete_when"):
        assert toml_text.count(f"\n# {key}") == 1
        toml_text = toml_text.replace(f"\n# {key}", f"\n{key}")
    return toml_text


@pytest.fixture
def run(tmp_path):
    """Import a broker.conf with this content."""

    def import_text(text):
        path = tmp_path / "broker.conf"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return import_broker_conf(path)

    return import_text


@pytest.fixture
def load(run):
    """Import and load again."""

    def import_and_load(text):
        imported = run(text)
        return parse_config(imported.toml_text, "demo", "demo.toml"), imported.warnings

    return import_and_load


# --- properties: what java.util.Properties#load makes of it, compared with JDK 17 on 20,000 random texts ----


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("a=1\nb = 2\nc:3\nd 4\ne\t=\t5", [("a", "1"), ("b", "2"), ("c", "3"), ("d", "4"), ("e", "5")]),
        ("  # no\n! no\n\n  a=1  ", [("a", "1  ")]),
        ("a=1#not a comment", [("a", "1#not a comment")]),
        ("a = one\\\n   two\\\r\n\tthree", [("a", "onetwothree")]),
        ("a = 1\\\n# still the value", [("a", "1# still the value")]),
        ("# a comment does not go on \\\nb=2", [("b", "2")]),
        ("a=even\\\\\nb=2", [("a", "even\\"), ("b", "2")]),
        ("a\\ b\\=c=d\\:e", [("a b=c", "d:e")]),
        ("a=\\t\\n\\r\\f\\z\\u00e9\\ud83d\\ude00", [("a", "\t\n\r\fz\u00e9\U0001f600")]),
        ("a==b\na  =  :b", [("a", "=b"), ("a", ":b")]),
        ("a\nb=", [("a", ""), ("b", "")]),
        ("a=1\rb=2", [("a", "1"), ("b", "2")]),
        ("a=1\\", [("a", "1")]),
        ("\\\n# a comment after a lone backslash\na=1", [("a", "1")]),
        ("", []),
    ],
)
def test_properties(text, entries):
    assert parse_properties(text) == entries


@pytest.mark.parametrize("text", ["a=\\u12", "x=1\na=\\uzzzz"])
def test_broken_unicode_escape_names_the_line(text):
    with pytest.raises(PropertiesError, match=f"line {text.count(chr(10)) + 1}: "):
        parse_properties(text)


@given(st.text(st.characters(codec="latin-1")))
def test_any_text_is_read_or_refused(text):
    try:
        entries = parse_properties(text)
    except PropertiesError:
        return
    assert all(isinstance(part, str) for entry in entries for part in entry)


@given(st.dictionaries(st.text("abc =:#!\\\n\t", min_size=1), st.text("abc =:#!\\\n\t"), max_size=4))
def test_escaped_properties_round_trip(properties):
    def escape(text):
        for plain, escaped in [("\\", "\\\\"), ("\n", "\\n"), ("\t", "\\t")]:
            text = text.replace(plain, escaped)
        for special in " =:#!":
            text = text.replace(special, "\\" + special)
        return text

    text = "".join(f"{escape(key)} = {escape(value)}\n" for key, value in properties.items())
    assert dict(parse_properties(text)) == properties


# --- several paths ----------------------------------------------------------------------------------------


def test_multi_path_broker_becomes_a_complete_configuration(load):
    config, warnings = load(
        MULTI
        + "readOnlyCommitLogStorePaths = /data2/commitlog,/old/commitlog\n"
        + "mappedFileSizeCommitLog=67108864\n"
        + "diskMaxUsedSpaceRatio=60\ndiskSpaceCleanForciblyRatio=70\ndiskSpaceWarningLevelRatio=80\n"
    )
    assert config.mountpoint == "/store/commitlog"
    assert config.segment_size == 2**26
    assert config.thresholds == Thresholds(clean=60, force=70, full=80, resume=68)
    assert [(disk.path, disk.readonly) for disk in config.disks] == [
        ("/data1/commitlog", False),
        ("/data2/commitlog", True),
        ("/old/commitlog", True),
    ]
    assert len(warnings) == 1
    assert PROPOSAL in warnings[0]


def test_without_settings_the_defaults_stay_defaults(load):
    config, _ = load(MULTI)
    assert config.segment_size == 2**30
    assert config.thresholds == Thresholds()
    assert config.retention == RetentionRules()
    assert not any(key.startswith(("thresholds", "retention")) for key in config.given)


def test_colon_as_in_rip_7(load):
    config, warnings = load("storePathCommitLog=/data1/c:/data2/c\n")
    assert [disk.path for disk in config.disks] == ["/data1/c", "/data2/c"]
    assert "splits at ',' only" in warnings[0]
    assert "rocketmq.broker.multiPathSplitter" in warnings[0]


def test_a_colon_inside_a_name_separates_nothing(run):
    imported = run("storePathCommitLog=/data/a:b\n")
    assert 'mountpoint = "/data/a:b"' in imported.toml_text


def test_comma_wins_over_colon(load):
    config, _ = load("storePathCommitLog=/a:x,/b\n")
    assert [disk.path for disk in config.disks] == ["/a:x", "/b"]


def test_list_items_are_not_trimmed_by_the_broker(load):
    config, warnings = load("storePathCommitLog=/data1/c, /data2/c,,/data1/c/\n")
    assert [disk.path for disk in config.disks] == ["/data1/c", "/data2/c"]
    told = "\n".join(warnings)
    assert "does not trim the item ' /data2/c'" in told
    assert "has an empty item" in told
    assert "names /data1/c twice" in told


def test_a_trailing_comma_still_means_several_paths(load):
    config, _ = load("storePathCommitLog=/data1/c,\n")
    assert [disk.path for disk in config.disks] == ["/data1/c"]


def test_read_only_paths_are_compared_letter_by_letter(load):
    config, warnings = load(MULTI + "readOnlyCommitLogStorePaths=/data2/commitlog/\n")
    assert config.disks[1].readonly
    assert any("these are different paths" in warning for warning in warnings)


def test_nothing_writable(run):
    imported = run(MULTI + "readOnlyCommitLogStorePaths=/data1/commitlog,/data2/commitlog\n")
    assert any("every disk is read-only" in warning for warning in imported.warnings)


@pytest.mark.parametrize(
    ("root", "mountpoint"),
    [
        ("/store", "/store/commitlog"),
        ("/data1", USUAL_MOUNTPOINT),
        (None, USUAL_MOUNTPOINT),
    ],
)
def test_the_proposed_mountpoint_keeps_clear_of_the_disks(load, root, mountpoint):
    line = f"storePathRootDir={root}\n" if root else ""
    config, _ = load(line + "storePathCommitLog=/data1/commitlog,/data2/commitlog\n")
    assert config.mountpoint == mountpoint


def test_no_mountpoint_is_better_than_a_wrong_one(run):
    imported = run("storePathCommitLog=/var/rocketmq/store/commitlog,/data2/c\n")
    assert any("no mountpoint can be proposed" in warning for warning in imported.warnings)
    with pytest.raises(ConfigError, match="mountpoint: missing"):
        parse_config(imported.toml_text, "demo", "demo.toml")


@given(
    st.lists(st.text("abcXYZ-_ .\"'é#[]=", min_size=1, max_size=8), min_size=2, max_size=4, unique=True),
    st.integers(1, 2**19 - 1),
    st.tuples(*[st.integers(-200, 200)] * 3),
    st.fixed_dictionaries({}, optional=dict.fromkeys(RETENTION_INTS, st.integers(-(2**31), 2**31 - 1))),
    st.text("0124 ;x", max_size=6),
)
def test_any_multi_path_import_loads_again(tmp_path_factory, names, pages, ratios, retention, delete_when):
    paths = [f"/d{index}/x{name}x" for index, name in enumerate(names)]
    keys = ("diskMaxUsedSpaceRatio", "diskSpaceCleanForciblyRatio", "diskSpaceWarningLevelRatio")
    lines = [f"storePathCommitLog={','.join(paths)}", f"mappedFileSizeCommitLog={pages * 4096}"]
    lines += [f"{key}={ratio}" for key, ratio in zip(keys, ratios, strict=True)]
    lines += [f"{key}={value}" for key, value in retention.items()] + [f"deleteWhen={delete_when}"]
    source = tmp_path_factory.getbasetemp() / "any-broker.conf"
    source.write_bytes("\n".join(lines).encode("iso-8859-1"))
    imported = import_broker_conf(source)
    config = parse_config(imported.toml_text, "demo", "demo.toml")
    assert [disk.path for disk in config.disks] == paths
    assert config.segment_size == pages * 4096
    assert all(warning.isprintable() for warning in imported.warnings)
    assert parse_config(uncomment_mode_filesystem(imported.toml_text), "demo", "demo.toml").disks == config.disks


# --- a single path ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "mountpoint"),
    [
        ("storePathCommitLog = /store/commitlog/\n", "/store/commitlog"),
        ("storePathRootDir=/store\n", "/store/commitlog"),
        ("brokerName=a\n", "/var/rocketmq/store/commitlog"),
        ("storePathCommitLog=\nstorePathRootDir=/store\n", "/store/commitlog"),
    ],
)
def test_single_path_becomes_the_mountpoint_and_disks_are_to_be_filled_in(run, text, mountpoint):
    imported = run(text)
    assert any(f"becomes the mountpoint {mountpoint}; fill in the [[disks]]" in line for line in imported.warnings)
    with pytest.raises(ConfigError, match="disks: missing"):
        parse_config(imported.toml_text, "demo", "demo.toml")
    completed = imported.toml_text + '[[disks]]\npath = "/data1/commitlog"\n'
    assert parse_config(completed, "demo", "demo.toml").mountpoint == mountpoint


def test_read_only_paths_mean_nothing_to_a_single_path_broker(run):
    imported = run("storePathCommitLog=/store/c\nreadOnlyCommitLogStorePaths=/old/c\n")
    assert any("readOnlyCommitLogStorePaths has no effect" in warning for warning in imported.warnings)
    assert "/old" not in imported.toml_text


# --- values as the broker takes them ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "clamped"),
    [
        ("diskMaxUsedSpaceRatio", 5, ("clean", 10)),
        ("diskSpaceCleanForciblyRatio", 95, ("force", 85)),
        ("diskSpaceWarningLevelRatio", 99, ("full", 90)),
    ],
)
def test_clamped_values_are_reported(load, key, value, clamped):
    config, warnings = load(MULTI + f"{key}={value}\n")
    threshold, expected = clamped
    assert getattr(config.thresholds, threshold) == expected
    assert any(line.startswith(f"{key} = {value} is outside") for line in warnings)


def test_limits_in_the_wrong_order_are_lowered_as_the_broker_acts(load):
    config, warnings = load(MULTI + "diskSpaceWarningLevelRatio=70\n")
    assert config.thresholds == Thresholds(clean=70, force=70, full=70)
    assert any("diskSpaceCleanForciblyRatio = 85 (its default) is above" in line for line in warnings)
    assert any("diskMaxUsedSpaceRatio = 75 (its default) is above" in line for line in warnings)


@pytest.mark.parametrize(
    ("value", "cause"),
    [
        ("1GB", "not a Java int"),
        ("67108864 ", "blank at its end"),
        ("2147483648", "not a Java int"),
        ("", "not a Java int"),
    ],
)
def test_an_int_that_does_not_parse_leaves_the_default(load, value, cause):
    config, warnings = load(MULTI + f"mappedFileSizeCommitLog={value}\n")
    assert config.segment_size == 2**30
    assert any("is ignored by the broker" in line and cause in line for line in warnings)


@pytest.mark.parametrize("size", [1000, -4096, 0, 2147483647])
def test_a_segment_size_that_cannot_be_served_is_told_and_refused_later(run, size):
    imported = run(MULTI + f"mappedFileSizeCommitLog={size}\n")
    assert any(f"mappedFileSizeCommitLog = {size} is not supported" in line for line in imported.warnings)
    with pytest.raises(ConfigError, match="segment_size"):
        parse_config(imported.toml_text, "demo", "demo.toml")


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("mapedFileSizeCommitLog", "mappedFileSizeCommitLog"),
        ("MappedFileSizeCommitLog", "mappedFileSizeCommitLog"),
        ("storePathCommitlog", "storePathCommitLog"),
        ("readonlyCommitLogStorePaths", "readOnlyCommitLogStorePaths"),
        ("destroyMappedFileIntervalForcibly", "destroyMapedFileIntervalForcibly"),
        ("cleanFileForcibleEnable", "cleanFileForciblyEnable"),
        ("cleanResourcesInterval", "cleanResourceInterval"),
    ],
)
def test_misspelt_keys_are_named(load, key, meant):
    config, warnings = load(MULTI + f"{key}=1048576\n")
    assert config.segment_size == 2**30
    assert any(line.startswith(f"{key} is ignored by the broker: did you mean {meant}?") for line in warnings)


@pytest.mark.parametrize(
    "key",
    [
        "brokerName",
        "mappedFileSizeConsumeQueue",
        "mappedFileSizeTimerLog",
        "storePathDLedgerCommitLog",
        "deleteConsumeQueueFilesInterval",
        "redeleteHangedFileInterval",
        "logicalDiskSpaceCleanForciblyThreshold",
    ],
)
def test_other_keys_of_the_broker_are_none_of_our_business(load, key):
    assert len(load(MULTI + f"{key}=1\n")[1]) == 1  # the proposed mountpoint


# --- retention -------------------------------------------------------------------------------------------


def test_how_a_broker_deletes_is_taken_over(load):
    config, warnings = load(
        MULTI
        + "deleteFileBatchMax=20\ndestroyMapedFileIntervalForcibly=60000\ncleanResourceInterval=15000\n"
        + "deleteCommitLogFilesInterval=100\ncleanFileForciblyEnable=TRUE\n"
    )
    assert config.retention == RetentionRules(batch=20, grace_s=60, interval_s=15)
    assert {key for key in config.given if key.startswith("retention")} == {
        "retention.batch",
        "retention.grace",
        "retention.interval",
    }
    assert len(warnings) == 1
    assert PROPOSAL in warnings[0]


@pytest.mark.parametrize(
    ("text", "reserved_hours", "delete_when"),
    [
        ("", 72, {4}),
        ("fileReservedTime=48\ndeleteWhen= 04;16 \n", 48, {4, 16}),
        ("fileReservedTime=48 \ndeleteWhen=+5;\n", 72, {5}),
        ("fileReservedTime=0\ndeleteWhen=24;3\n", 1, {3}),
        ("fileReservedTime=-5\ndeleteWhen=02; 14\n", 1, {2}),
        ("deleteWhen=\n", 72, {4}),
    ],
)
def test_age_is_the_brokers_until_its_comments_become_keys(run, text, reserved_hours, delete_when):
    toml_text = run(MULTI + text).toml_text
    cooperative = parse_config(toml_text, "demo", "demo.toml").retention
    assert cooperative == RetentionRules()
    filesystem = parse_config(uncomment_mode_filesystem(toml_text), "demo", "demo.toml").retention
    assert filesystem.mode is Mode.FILESYSTEM
    assert filesystem.reserved_s == reserved_hours * 3600
    assert filesystem.delete_when == delete_when


def test_the_origin_of_what_is_the_brokers_is_reported(run):
    toml_text = run(MULTI + "fileReservedTime=48\n").toml_text
    assert '# reserved = "48h"  # fileReservedTime\n' in toml_text
    assert '# delete_when = "04"  # deleteWhen (its default)\n' in toml_text


@pytest.mark.parametrize(
    ("line", "expected", "fragment"),
    [
        (
            "deleteFileBatchMax=0",
            {"batch": 1},
            "the broker deletes one segment per run; the new configuration gets 1",
        ),
        ("destroyMapedFileIntervalForcibly=-1", {"grace_s": 0}, "is negative"),
        ("cleanResourceInterval=100", {"interval_s": 1}, "outside 1s to 10m"),
        ("cleanResourceInterval=3600000", {"interval_s": 600}, "outside 1s to 10m"),
        ("cleanResourceInterval=0", {"interval_s": 10}, "a broker does not start with this value"),
        ("deleteCommitLogFilesInterval=500", {}, "deleteCommitLogFilesInterval = 500 has no counterpart"),
        ("deleteFileBatchMax=ten", {}, "its default 10 is used"),
        ("fileReservedTime=0", {}, "every segment except the newest is expired"),
        ("fileReservedTime=876000", {}, "reaches back before 1970"),
        ("replicasPerDiskPartition=2", {}, "decides by the size of its own files"),
    ],
)
def test_values_of_retention_that_are_not_taken_as_they_are(load, line, expected, fragment):
    config, warnings = load(f"{MULTI}{line}\n")
    assert config.retention == RetentionRules(**expected)
    told = [warning for warning in warnings if PROPOSAL not in warning]
    assert len(told) == 1
    assert fragment in told[0]


@pytest.mark.parametrize(
    ("value", "fragment"),
    [
        ("04, 16", "the broker fails at '04, 16' and deletes nothing, not even by force"),
        ("04; 16", "the broker fails at ' 16'"),
        ("04;;16", "the broker fails at ''"),
        ("", "the broker fails at ''"),
        ("99999999999", "the broker fails at '99999999999'"),
        ("24", "hour 24 does not exist"),
        (";", "names no hour"),
    ],
)
def test_a_delete_when_that_is_no_list_of_hours(run, value, fragment):
    assert any(fragment in warning for warning in run(f"{MULTI}deleteWhen={value}\n").warnings)


@pytest.mark.parametrize("value", ["04", "4", "00;23", "04;", "+4"])
def test_a_delete_when_that_works_is_not_complained_of(run, value):
    assert len(run(f"{MULTI}deleteWhen={value}\n").warnings) == 1


@pytest.mark.parametrize(("value", "odd"), [("false", False), ("False", False), ("true ", True), ("yes", True)])
def test_a_broker_that_deletes_nothing_by_force(load, value, odd):
    config, warnings = load(MULTI + f"cleanFileForciblyEnable={value}\n")
    assert config.retention.mode is Mode.COOPERATIVE
    assert any("the filesystem will" in line and 'retention.mode = "off"' in line for line in warnings)
    assert any("the broker reads it as false" in line for line in warnings) == odd


def test_off_is_a_comment_away_where_nothing_was_deleted_by_force(run):
    toml_text = run(MULTI + "cleanFileForciblyEnable=false\n").toml_text
    assert toml_text.count('# mode = "off"') == 1
    off = parse_config(toml_text.replace('# mode = "off"', 'mode = "off"'), "demo", "demo.toml")
    assert off.retention.mode is Mode.OFF


# --- other keys ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("diskMaxUsedSpaceRatio=70\ndiskMaxUsedSpaceRatio=60\n", "given 2 times"),
        ("rocketmq.broker.diskSpaceWarningLevelRatio=0.8\n", "Java system property"),
        ("enableDLegerCommitLog=True\n", "DLedger has its own log"),
    ],
)
def test_other_traps(run, text, fragment):
    assert any(fragment in line for line in run(MULTI + text).warnings)


def test_the_file_is_iso_8859_1_to_the_broker(run):
    imported = run("storePathCommitLog=/data/é,/data/b\n")
    assert any("ISO-8859-1" in line for line in imported.warnings)
    assert "/data/Ã©" in imported.toml_text


def test_relative_paths_are_reported(run):
    imported = run("storePathCommitLog=a/b,/data/b\n")
    assert any("'a/b' is not absolute" in line for line in imported.warnings)


def test_unusable_files_are_one_line(tmp_path, run):
    with pytest.raises(UsageError, match="no such file"):
        import_broker_conf(tmp_path / "absent.conf")
    with pytest.raises(UsageError, match="cannot be read"):
        import_broker_conf(tmp_path)
    with pytest.raises(UsageError, match="line 2: "):
        run("a=1\nb=\\u00\n")
