"""Which mount a command means, where several are running, and for a user whom no daemon answers."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.command_line import CommandLine
from support.pools import PoolMount, pool_in
from support.unprivileged import Desktop
from support.waiting import PATIENCE_S

from commitlogfs.mount.linux import mountinfo

pytestmark = [pytest.mark.mounted, pytest.mark.root, pytest.mark.full]

CLI = [sys.executable, "-m", "commitlogfs.mount.cli"]
NAMES = (f"orders{os.getpid()}", f"payments{os.getpid()}")
REFUSED = 4
MakePool = Callable[..., PoolMount]


@pytest.fixture(scope="module")
def served(module_directory: Path) -> Iterator[list[PoolMount]]:
    """Two mounts of one runtime directory, with a segment each."""
    runtime = {"COMMITLOGFS_RUNTIME_DIR": str(module_directory / "run")}
    with ExitStack() as stack:
        pools = [
            stack.enter_context(pool_in(module_directory / name, 1, born=False, name=name, variables=runtime))
            for name in NAMES
        ]
        for pool in pools:
            pool.init("--mode", "0755")  # other users see it, too
            pool.start()
            pool.make_segments([0])
        yield pools


@pytest.fixture
def pools(served: list[PoolMount], module_directory: Path, monkeypatch: pytest.MonkeyPatch) -> list[PoolMount]:
    """The same, for commands of this process."""
    monkeypatch.setenv("COMMITLOGFS_RUNTIME_DIR", str(module_directory / "run"))
    return served


@pytest.fixture
def cli() -> CommandLine:
    return CommandLine()


def test_several_mounts_are_one_line_each(pools: list[PoolMount], cli: CommandLine) -> None:
    ran = cli("status")
    assert (ran.status, ran.err) == (0, "")
    heading, *lines = ran.out.splitlines()
    assert heading.split() == ["name", "mountpoint", "segments", "shown", "used", "remarks"]
    assert [line.split()[:3] for line in lines] == [[pool.name, str(pool.mountpoint), "1"] for pool in pools]
    document = cli("status", "--json").json()
    assert document["schema"] == 1
    assert [mount["name"] for mount in document["mounts"]] == list(NAMES)
    assert all(mount["segments"]["count"] == 1 for mount in document["mounts"])
    one = cli("map")
    assert one.status == 2
    assert f"give one of {', '.join(NAMES)}" in one.err


def test_a_mount_that_does_not_answer_has_its_line(pools: list[PoolMount], cli: CommandLine) -> None:
    assert pools[0].daemon is not None
    pools[0].daemon.send_signal(19)  # SIGSTOP
    try:
        ran = cli("status")
        assert ran.status == 3
        first, second = ran.out.splitlines()[1:]
        assert first.split()[:3] == [NAMES[0], str(pools[0].mountpoint), "?"]
        assert "does not answer" in first
        assert second.split()[:3] == [NAMES[1], str(pools[1].mountpoint), "1"]
    finally:
        pools[0].daemon.send_signal(18)  # SIGCONT


def test_a_misspelt_name_of_a_mount_gets_a_suggestion(pools: list[PoolMount], cli: CommandLine) -> None:
    for verb in (["status"], ["map"], ["locate", "0"], ["read", "--offset", "0"], ["restart"]):
        ran = cli(*verb, NAMES[0][:-1])
        assert (ran.status, ran.out) == (2, ""), verb
        assert f"did you mean {NAMES[0]}?" in ran.err, verb


def test_check_and_doctor_take_the_mountpoint(pools: list[PoolMount], cli: CommandLine) -> None:
    """Name of a mount whose configuration is in no searched directory."""
    assert cli("check", pools[1].mountpoint).out.startswith(f"{NAMES[1]}: pool ")
    assert f"{pools[1].mountpoint}: mounted, and answers" in cli("doctor", pools[1].mountpoint).out


MOUNT_WITH_CONFIGURATIONS_IN = """
import sys
from pathlib import Path
from commitlogfs.mount import cli
from commitlogfs.mount.config import model
model.SYSTEM_DIRECTORY = Path(sys.argv[1])
sys.exit(cli.main(["mount", "--daemon", "--no-keeper", sys.argv[2]]))
"""


def test_mount_takes_the_mountpoint_of_a_configuration(
    make_pool: MakePool, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = make_pool(1, name="unmounted")
    monkeypatch.setenv(*next(iter(pool.env.items())))
    directories = (pool.config.parent, pool.mountpoint)
    command = [sys.executable, "-c", MOUNT_WITH_CONFIGURATIONS_IN, *map(str, directories)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert mountinfo.find_mount(pool.mountpoint) is not None
    assert cli("status", pool.name).status == 0
    assert cli("umount", pool.mountpoint).status == 0


# --- another user ----------------------------------------------------------------------------------------

AsUser = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def as_user(served: list[PoolMount], desktop: Desktop) -> AsUser:
    """The command line as an ordinary user, beside two mounts of root."""
    return lambda *arguments: desktop.run(*CLI, *arguments)


@pytest.mark.parametrize("by", ["name", "mountpoint"])
def test_status_works_for_another_user(served: list[PoolMount], as_user: AsUser, by: str) -> None:
    which = {"name": NAMES[0], "mountpoint": served[0].mountpoint}[by]
    ran = as_user("status", which)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith(f"{NAMES[0]} on {served[0].mountpoint}")


def test_top_works_for_another_user(served: list[PoolMount], as_user: AsUser) -> None:
    ran = as_user("top", NAMES[0], "--once", "--interval", "0.2")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith(f" {NAMES[0]} on {served[0].mountpoint}")
    assert "1 segment of 1MiB" in ran.stdout


def test_the_table_works_for_another_user(served: list[PoolMount], as_user: AsUser) -> None:
    """Other mounts of this machine may be in it, too."""
    shown = [line.split()[:3] for line in as_user("status").stdout.splitlines()]
    for pool in served:
        assert [pool.name, str(pool.mountpoint), "1"] in shown


@pytest.mark.parametrize("verb", ["map", "locate 0", "restart", "retention --dry-run"])
def test_what_only_root_may_ask_says_so(served: list[PoolMount], as_user: AsUser, verb: str) -> None:
    ran = as_user(*verb.split(), NAMES[0])
    assert (ran.returncode, ran.stdout) == (REFUSED, "")
    assert f"{NAMES[0]}: user root has mounted it at {served[0].mountpoint}" in ran.stderr
    assert ran.stderr.count("\n") == 1


def test_read_says_who_may_read_the_log(served: list[PoolMount], as_user: AsUser) -> None:
    ran = as_user("read", "--offset", 0, NAMES[0])
    assert (ran.returncode, ran.stdout) == (REFUSED, "")
    assert "permission denied; only the owner" in ran.stderr


@pytest.fixture
def closed(make_pool: MakePool) -> PoolMount:
    """A mount that lets nobody in but its daemon's user."""
    pool = make_pool(1, name=f"closed{os.getpid()}", settings={"allow_other": "false"})
    pool.start()
    return pool


def test_a_mount_closed_to_others_says_so(closed: PoolMount, as_user: AsUser) -> None:
    ran = as_user("status", closed.name)
    assert (ran.returncode, ran.stdout) == (REFUSED, "")
    assert "run the command as root" in ran.stderr


def test_a_name_of_a_running_mount_finds_its_file(pools: list[PoolMount], cli: CommandLine) -> None:
    pool = pools[0]
    assert cli("check", pool.name).out.startswith(f"{pool.name}: pool ")
    assert f"{pool.name}: no such configuration" not in cli("doctor", pool.name).err
    ran = cli("check", "nobody")
    assert (ran.status, ran.out) == (2, "")
    assert "nobody: no such configuration" in ran.err
