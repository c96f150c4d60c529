"""map, locate, read and the options before the verb, against a real mount."""

import base64
import json
import os
import subprocess
import sys

import pytest
from support.command_line import CommandLine
from support.pools import MIB, PoolMount, segment_name
from support.records import make_blank, make_record

from commitlogfs.mount.linux import mountinfo
from commitlogfs.mount.views.segment_map import BLOCKS

pytestmark = [pytest.mark.mounted, pytest.mark.full]

SEGMENTS = 8
BODY = b"the body of a message "


@pytest.fixture(scope="module")
def filled(shared: PoolMount) -> PoolMount:
    """Segments 0 to 7. In 0: two records and the blank that ends it; in 1: one record that crosses a page, a
    damaged one, leftovers; 2 to 5: one each; 6 and 7: made ahead."""
    first = make_record(0, body=BODY)
    second = make_record(len(first), body=b"second")
    blank = make_blank(MIB - len(first) - len(second))
    contents = {0: first + second + blank, 1: b""}
    contents[1] += make_record(MIB, body=b"x" * 5000)
    contents[1] += make_record(MIB + len(contents[1]), crc=1)
    contents[1] += make_record(7)
    contents |= {index: make_record(index * MIB) for index in range(2, 6)}
    shared.make_segments(range(SEGMENTS), fill=False)
    for index, content in contents.items():
        with open(shared.path(index), "r+b") as file:
            file.write(content)
    return shared


@pytest.fixture
def cli(filled, monkeypatch):
    monkeypatch.setenv("COMMITLOGFS_RUNTIME_DIR", str(filled.runtime))
    monkeypatch.setenv("COLUMNS", "80")
    return CommandLine()


# --- map -------------------------------------------------------------------------------------------------


def test_map_draws_every_segment_on_its_disk(filled, cli):
    ran = cli("map")
    assert ran.status == 0
    lines = ran.out.splitlines()
    assert lines[0] == f"test: 8 segments of 1MiB on 3 disks, log offsets 0 to {SEGMENTS * MIB:,}"
    for number, row in enumerate(lines[1:4]):
        cells = row.split("  ", 1)[1].split()
        assert [cell == "███" for cell in cells] == [index % 3 == number for index in range(SEGMENTS)]
    assert lines[5].split() == ["0", str(3 * MIB), str(8 * MIB)]
    assert max(map(len, lines[1:])) <= 80
    assert "\x1b" not in ran.out


@pytest.mark.parametrize("how", ["name", "file", "mountpoint", "--config", "a link to the mountpoint"])
def test_the_mount_can_be_named_in_every_way(filled, cli, how, workdir):
    if how == "--config":
        assert cli("--config", filled.config, "map").status == 0
        return
    if how.startswith("a link"):
        (workdir / "link").symlink_to(filled.mountpoint)
    which = {"name": filled.name, "file": filled.config, "mountpoint": filled.mountpoint}
    assert cli("map", which.get(how, workdir / "link")).out.startswith("test: 8 segments")


def test_map_json(filled, cli):
    answer = json.loads(cli("map", "--json").out)
    assert answer["segments"] == [[index * MIB, index % 3 + 1] for index in range(SEGMENTS)]
    assert [disk["path"] for disk in answer["disks"]] == [str(disk) for disk in filled.disks]
    assert (answer["name"], answer["segment_size"], answer["gaps"]) == ("test", MIB, [])
    assert json.loads(cli("--json", "map").out) == answer


def test_map_in_a_pipe_that_takes_ascii_only(filled):
    env = {**os.environ, **filled.env, "PYTHONIOENCODING": "ascii", "COLUMNS": "60"}
    command = [sys.executable, "-m", "commitlogfs.mount.cli", "map"]
    done = subprocess.run(command, env=env, capture_output=True, check=True)
    assert done.stdout.isascii()
    assert b"###" in done.stdout
    assert max(map(len, done.stdout.splitlines()[1:])) <= 60


# --- locate ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "index", "position", "state"),
    [
        ("0", 0, 0, "sealed"),
        (str(MIB - 1), 0, MIB - 1, "sealed"),
        (segment_name(4, MIB), 4, 0, "sealed"),
        (str(5 * MIB + 17), 5, 17, "active"),
        (str(7 * MIB), 7, 0, "preallocated"),
    ],
)
def test_locate(filled, cli, target, index, position, state):
    answer = json.loads(cli("locate", target, "--json").out)
    name = segment_name(index, MIB)
    path = filled.disks[index % 3] / name
    assert answer == {
        "offset": index * MIB + position,
        "present": True,
        "segment": name,
        "position": position,
        "disk": str(filled.disks[index % 3]),
        "disk_number": index % 3 + 1,
        "path": str(path),
        "state": state,
        "reason": "",
    }
    words = cli("locate", target, filled.mountpoint)
    assert words.status == 0
    for text in (f"segment   {name} ({state})", f"position  {position}", f"path      {path}"):
        assert text in words.out.splitlines()


def test_locate_what_is_not_there(filled, cli):
    ran = cli("locate", SEGMENTS * MIB)
    assert (ran.status, ran.out) == (1, "")
    newest = segment_name(SEGMENTS - 1, MIB)
    assert ran.err == f"commitlogfs: log offset {8 * MIB}: after the newest segment {newest}: not written yet\n"
    ran = cli("locate", SEGMENTS * MIB, "--json")
    assert (ran.status, ran.json()["present"]) == (1, False)


# --- read ------------------------------------------------------------------------------------------------


def test_read_a_message_in_words(filled, cli):
    ran = cli("read", "--offset", 0)
    assert (ran.status, ran.err) == (0, "")
    assert "topic       TopicTest" in ran.out.splitlines()
    assert ran.out.splitlines()[-1] == BODY.decode()
    assert cli("read", "--message", "--offset", "0", filled.mountpoint).out == ran.out


def test_read_a_message_as_json_and_raw(cli):
    offset = len(make_record(0, body=BODY))
    document = json.loads(cli("read", "--offset", offset, "--json").out)
    assert base64.b64decode(document["body_base64"]) == b"second"
    assert document["commitLogOffset"] == offset
    status, out, _ = cli.binary("read", "--offset", offset, "--raw")
    assert (status, out) == (0, make_record(offset, body=b"second"))


def test_read_a_message_longer_than_a_page(cli):
    status, out, _ = cli.binary("read", "--offset", MIB, "--raw")
    assert (status, out) == (0, make_record(MIB, body=b"x" * 5000))


@pytest.mark.parametrize(("offset", "length"), [(0, "1"), (MIB - 5, "10"), (0, "3MiB"), (123, "1MiB")])
def test_read_bytes(filled, cli, offset, length):
    count = {"1": 1, "10": 10, "3MiB": 3 * MIB, "1MiB": MIB}[length]
    log = b"".join(filled.path(index).read_bytes() for index in range(SEGMENTS))
    status, out, _ = cli.binary("read", "--offset", offset, "--length", length)
    assert (status, out) == (0, log[offset : offset + count])


def test_read_bytes_past_the_end_gives_what_there_is(filled, cli):
    status, out, err = cli.binary("read", "--offset", SEGMENTS * MIB - 3, "--length", 10)
    assert (status, out) == (1, bytes(3))
    assert err.startswith(f"commitlogfs: log offset {SEGMENTS * MIB}: after the end of the log".encode())


DAMAGED = MIB + len(make_record(MIB, body=b"x" * 5000))
LEFTOVER = DAMAGED + len(make_record(DAMAGED))
SECOND = len(make_record(0, body=BODY))
BLANK = len(make_record(0, body=BODY) + make_record(0, body=b"second"))


@pytest.mark.parametrize(
    ("offset", "said"),
    [
        (1, "no record begins here; the message at log offset 0 contains it: `commitlogfs read --offset 0`"),
        (SECOND - 1, "no record begins here; the message at log offset 0 contains it"),
        (SECOND + 3, f"the message at log offset {SECOND} contains it"),
        (BLANK - 1, f"the message at log offset {SECOND} contains it"),
        (BLANK + 100, "nothing is written here yet; --offset must be the physical offset of a message"),
        (LEFTOVER, "an old record, which belongs to log offset 7; --offset must be"),
        (
            BLANK,
            "a blank record, which fills the rest of a segment; the log continues in the next segment, "
            f"at log offset {MIB}",
        ),
        (6 * MIB, "nothing is written here yet"),
        (MIB - 3, "an incomplete record: 3 of its 8 bytes are there"),
        (SEGMENTS * MIB, "after the end of the log"),
        (2**63 - 1, "after the end of the log"),
    ],
)
def test_read_where_no_message_begins(cli, offset, said):
    ran = cli("read", "--offset", offset)
    assert (ran.status, ran.out) == (1, "")
    assert said in ran.err
    assert ran.err.count("\n") == 1


def test_read_a_damaged_message_shows_it_and_says_so(cli):
    ran = cli("read", "--offset", DAMAGED)
    assert ran.status == 1
    assert "WRONG: the body is damaged" in ran.out
    assert ran.out.splitlines()[-1] == "hello"


@pytest.mark.root
def test_the_log_is_not_for_everybody(filled):
    # The command line needs the interpreter's directories, which a stranger may not see: ask the mount itself.
    log = filled.mountpoint / ".commitlogfs" / "log"
    done = subprocess.run(["cat", log], user=65534, group=65534, extra_groups=[], capture_output=True, check=False)
    assert done.returncode == 1
    assert b"Permission denied" in done.stderr


# --- status, and the options before the verb ---------------------------------------------------------------


def test_status_tells_of_the_store_root(filled, cli):
    document = cli("--json", "status").json()
    root = filled.mountpoint.parent
    st = os.statvfs(root)
    used = st.f_blocks - st.f_bfree
    assert document["store_root"]["path"] == str(root)
    assert document["store_root"]["used_percent"] == pytest.approx(100 * used / (used + st.f_bavail), abs=2)
    words = cli("status").out
    assert f"The store root {root} (consumequeue, index) is " in words


def test_status_checks_that_nothing_is_wrong(cli):
    assert cli("status", "--check").status == 0


def test_status_in_a_pipe_has_one_line_per_disk(filled, cli):
    lines = cli("status").out.splitlines()
    for disk in filled.disks:
        (line,) = [line for line in lines if f"  {disk}  rw  " in line]
        assert "(75 %)" in line


def test_verbose_logs_on_standard_error(cli):
    assert "event=asking" in cli("-v", "map").err
    assert cli("map").err == ""


def test_quiet_leaves_results_and_complaints(filled, cli):
    # Three directories on one filesystem: two warnings.
    ran = cli("-q", "check", filled.config)
    assert (ran.status, len(ran.out.splitlines())) == (1, 2)
    assert cli("-q", "config", "check", filled.config).out == ""


def test_options_of_one_command_do_not_outlive_it(filled, cli):
    assert cli("--config", filled.config, "-q", "--json", "map").json()["name"] == "test"
    assert cli("map").out.startswith("test: ")


# --- without a daemon ------------------------------------------------------------------------------------


def test_a_dead_mount_is_unreachable(make_pool, monkeypatch):
    pool = make_pool(1, name="dying")
    pool.start()
    monkeypatch.setenv("COMMITLOGFS_RUNTIME_DIR", str(pool.runtime))
    cli = CommandLine()
    pool.kill()
    assert mountinfo.find_mount(pool.mountpoint) is not None
    for arguments in (
        ("map", "dying"),
        ("locate", "0", pool.mountpoint),
        ("read", "--offset", "0"),
        ("read", "--offset", "0", pool.mountpoint),
        ("status",),
    ):
        ran = cli(*arguments)
        assert (ran.status, ran.out) == (3, ""), arguments
        assert ran.err.count("\n") == 1
    ran = cli("doctor", pool.config)
    assert ran.status == 1
    assert f"problem: {pool.mountpoint}: the mount does not answer" in ran.out
    assert "note: " + str(pool.runtime / "dying.sock") in ran.out


def test_an_empty_log_and_a_degraded_one(make_pool, monkeypatch):
    pool = make_pool(3, settings={"on_missing": '"degraded"'})
    pool.start()
    monkeypatch.setenv("COMMITLOGFS_RUNTIME_DIR", str(pool.runtime))
    cli = CommandLine()
    assert "The log is empty" in cli("map").out
    assert "the log is empty" in cli("locate", 0).err
    assert "after the end of the log" in cli("read", "--offset", 0).err

    pool.make_segments(range(4))
    pool.stop()
    lost = pool.disks[1]
    pool.disks = [pool.disks[0], pool.disks[2]]
    pool.start()
    drawn = cli("map").out
    assert f"DEGRADED: served without {lost}." in drawn
    assert "1 GAP" in drawn.splitlines()[0]
    assert "gaps      " + BLOCKS.gap * 3 in drawn
    assert f"gap: 1 segment missing from {segment_name(1, MIB)} on" in drawn
    assert json.loads(cli("map", "--json").out)["gaps"] == [[MIB, 2 * MIB]]
    ran = cli("locate", MIB + 5)
    assert (ran.status, str(lost) in ran.err) == (1, True)
    ran = cli("read", "--offset", MIB + 5)
    assert ran.status == 1
    assert "no segment holds it" in ran.err
    status, out, _ = cli.binary("read", "--offset", MIB - 4, "--length", 100)
    assert (status, out) == (1, pool.path(0).read_bytes()[-4:])
