"""One base directory and one mount namespace per process, swept before and after; skips that name the missing
ability; no leaked mounts; the minutes of each room."""

import contextlib
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from support import mount_namespace
from support.lanes import Times
from support.loop_disks import DiskFarm, loop_available, mkfs_available
from support.pools import PoolMount, pool_in
from support.timings import BRISK
from support.waiting import eventually

import commitlogfs.fusefs  # noqa: F401 - its extension has to be loaded before a test module loads pyfuse3
from commitlogfs.bench import sweep
from commitlogfs.bench.rocketmq.process import JVM_FLAGS
from commitlogfs.store.timing import DEFAULT

# A JVM that lives for seconds spends most of them on compiling what it will never run again.
_SHORT_LIVED = "-XX:TieredStopAtLevel=1"
os.environ.setdefault(JVM_FLAGS, _SHORT_LIVED)
os.environ.setdefault("SPARK_SUBMIT_OPTS", f"{_SHORT_LIVED} -XX:+UseSerialGC")

# The same examples on every machine and in every run; no time limit per example, since machines are busy.
settings.register_profile("repeatable", derandomize=True, database=None, deadline=None)
settings.load_profile("repeatable")


# A shell starts background work with SIGINT ignored, and commands that tests interrupt would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

_SHARED_NAMESPACE = mount_namespace.enter()
"""Why this process has no mount namespace of its own; "" if it has one."""

_ENDING_S = 30.0
"""Patience with processes that end after the last test; what still runs then is a failure of the run."""

_SHORT_RUN_S = 60.0
"""A run of less says nothing about where time goes."""

_TIMES = Times(Path(__file__).parent.parent / "build" / "test-times.json")


def _lacks_root() -> str:
    return "" if os.geteuid() == 0 else "needs root"


def _lacks_fuse() -> str:
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return f"/dev/fuse: {error.strerror}"
    return ""


def _lacks_java() -> str:
    return "" if shutil.which("java") else "no java"


_NEEDS: dict[str, Callable[[], str]] = {"root": _lacks_root, "mounted": _lacks_fuse, "broker": _lacks_java}


def pytest_report_header() -> list[str]:
    abilities = {
        "root": _lacks_root(),
        "/dev/fuse": _lacks_fuse(),
        "loop": loop_available(),
        "xfs": "" if mkfs_available("xfs") else "no mkfs.xfs",
        "java": _lacks_java(),
        "mount namespaces": _SHARED_NAMESPACE,
    }
    shown = ", ".join(f"{name}: {lack or 'yes'}" for name, lack in abilities.items())
    return [f"abilities: {shown}", f"kernel: {os.uname().release}"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _longest_file_first(config, items)
    lacks = {marker: lack for marker, probe in _NEEDS.items() if (lack := probe())}
    for item in items:
        for marker, lack in lacks.items():
            if item.get_closest_marker(marker) is not None:
                item.add_marker(pytest.mark.skip(reason=lack))


def _longest_file_first(config: pytest.Config, items: list[pytest.Item]) -> None:
    """So that no worker is left with a long file at the end. Unknown files keep the order of the collection."""
    # xdist requires the same order of all workers, so they get the times from the process that has started them.
    worker = getattr(config, "workerinput", None)
    former = worker["former_times"] if worker is not None else _TIMES.former_by_file()
    items.sort(key=lambda item: -former.get(item.nodeid.partition("::")[0], 0.0))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """xdist starts a worker."""
    node.workerinput["former_times"] = _TIMES.former_by_file()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _TIMES.add(report.nodeid, report.duration)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """In the process that reports: xdist's workers have no terminal."""
    rooms = _TIMES.by_room()
    if sum(rooms.values()) < _SHORT_RUN_S:
        return
    terminalreporter.section("minutes by room, added over all processes")
    for room in sorted(rooms, key=lambda room: -rooms[room]):
        terminalreporter.write_line(f"{rooms[room] / 60:6.1f}  {room}")
    _TIMES.save()


@pytest.fixture(scope="session")
def base_directory() -> Iterator[Path]:
    """The directory under which a run makes everything; whatever it starts is known by its environment."""
    for line in sweep.sweep_stale():
        print(f"swept, left by an aborted run: {line}")
    base = sweep.create_base("test")
    with sweep.belonging_to(base):
        yield base
    # What the last test has ended may need a moment: the kernel takes the locked memory of a daemon apart.
    with contextlib.suppress(AssertionError):
        eventually(lambda: not sweep.processes_of(base), _ENDING_S)
    left = sweep.sweep(base)
    assert not left, f"left at the end of the run: {left}"
    assert not base.exists(), f"could not be removed: {base}"


@pytest.fixture(autouse=True)
def _no_leaked_mounts(base_directory: Path) -> Iterator[None]:
    # Made before a test's other fixtures and ended after them; mounts of wider-scoped ones are there already.
    before = {entry.mount_id for entry in sweep.mounts_of(base_directory)}
    yield
    leaked = [e.mountpoint for e in sweep.mounts_of(base_directory) if e.mount_id not in before]
    sweep.detach_mounts(base_directory, keep=before)
    assert not leaked, f"mounts leaked by this test: {leaked}"


@pytest.fixture
def workdir(base_directory: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """An empty directory for one test, on the base directory's filesystem; removed with the test."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", request.node.name)[:40]
    number = next(n for n in range(10_000) if not (base_directory / f"{name}.{n}").exists())
    directory = base_directory / f"{name}.{number}"
    directory.mkdir(mode=0o755)
    yield directory
    sweep.remove_tree(directory)


@pytest.fixture(scope="module")
def module_directory(base_directory: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """An empty directory for all tests of a module."""
    directory = base_directory / request.module.__name__.rpartition(".")[2]
    directory.mkdir(mode=0o755)
    yield directory
    sweep.remove_tree(directory)


@pytest.fixture
def disk_farm(workdir: Path) -> Iterator[DiskFarm]:
    """Makes ext4 and xfs disks: `disk_farm.add("xfs")`. Skips where there are no loop devices."""
    lack = loop_available()
    if lack:
        pytest.skip(lack)
    with DiskFarm(workdir / "disks") as farm:
        yield farm


MakePool = Callable[..., PoolMount]


@pytest.fixture
def make_pool(workdir: Path, request: pytest.FixtureRequest) -> Iterator[MakePool]:
    """Makes pools in the test's directory; the arguments are those of `pool_in`. Unmounted with the test.

    The daemons do their background work at once, but for tests that measure time, and soaks.
    """
    measures = any(request.node.get_closest_marker(lane) is not None for lane in ("timing", "soak"))
    with ExitStack() as stack:

        def make(*arguments: Any, **options: Any) -> PoolMount:
            times = DEFAULT if measures else BRISK
            return stack.enter_context(pool_in(workdir, *arguments, times=times, **options))

        yield make


@pytest.fixture
def mounted(make_pool: MakePool) -> PoolMount:
    """A pool of three directories with segments of 1 MiB, mounted."""
    pool = make_pool(3)
    pool.start()
    return pool
