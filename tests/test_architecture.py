"""The borders between packages, and the rules of the gate, read from the source; no package is imported here."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.gate_rule import breaches_of, lanes_in, lanes_of_file

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("bench", "console", "exporter", "fusefs", "mount", "pipeline", "pyspark_commitlog", "store")

ALLOWED = {
    "store": {"store"},
    "console": {"console", "store"},
    "fusefs": {"fusefs", "store"},
    "mount": {"mount", "console", "fusefs", "store"},
    "exporter": {"exporter", "console", "mount", "store"},
    "pipeline": {"pipeline", "console", "store"},
    "pyspark_commitlog": {"pipeline"},
    "bench": {"bench", "console", "mount", "fusefs", "pipeline", "store"},
}
"""package -> the packages of commitlogfs it may import."""

LAYERS = (
    (
        "store",
        "store.files",
        "store.slowness",
        "store.disks",
        "store.checks",
        "store.placement",
        "store.moves",
        "store.scrub",
        "store.pool",
        "store.retention",
    ),
    ("fusefs.kernel", "fusefs.disks", "fusefs.integrity", "fusefs.files", "fusefs.moves", "fusefs"),
    (
        "pipeline.arrays",
        "pipeline.bodies",
        "pipeline.log",
        "pipeline.broker",
        "pipeline.source",
        "pipeline.jobs",
        "pipeline.replay",
        "pipeline.commands",
        "pipeline",
    ),
    (
        *("mount.linux", "mount.config", "mount.location", "mount.preflight", "mount.keeper"),
        *("mount.journal", "mount.status"),
        "mount.metrics",
        *("mount.daemon", "mount.views", "mount.top", "mount.doctor", "mount.restoring", "mount.debugging"),
        *("mount.commands", "mount"),
    ),
)
"""The directories of each package, lowest layer first: each imports from those before it only."""

LARGEST_DIRECTORY = 14
LARGER_DIRECTORIES = {
    "fusefs.files": "one module for each kind of change of a file",
    "mount.commands": "one module for each verb",
    "mount.daemon": "one module for each group of control verbs",
    "pipeline.jobs": "three jobs, each with its tasks and its output",
    "store": "what its directories share",
}

FORBIDDEN = {
    "store": {"pyfuse3", "trio", "typer", "rich", "pydantic", "prometheus_client", "psutil", "tomlkit"},
    "fusefs": {"typer", "rich", "pydantic", "prometheus_client", "psutil", "tomlkit"},
    "pipeline": {"pyfuse3", "trio"},
}
"""package -> libraries that belong elsewhere."""

BLOCKING = {
    "time": {"sleep"},
    "os": {
        *("chmod", "chown", "close", "fallocate", "fchmod", "fchown", "fdatasync", "fstat", "fstatvfs", "fsync"),
        *("ftruncate", "getxattr", "link", "listdir", "listxattr", "lstat", "mkdir", "open", "posix_fallocate"),
        *("pread", "preadv", "pwrite", "pwritev", "read", "readlink", "remove", "removexattr", "rename", "replace"),
        *("rmdir", "scandir", "setxattr", "stat", "statvfs", "symlink", "sync", "truncate", "unlink", "utime"),
        *("walk", "write"),
    },
    "durable": {"sync_dir", "write_xattr", "remove_xattr", "remove_file_xattr", "read_xattr"},
    "safe_open": {"open_file", "open_unnamed", "open_directory", "link_unnamed", "stat_path"},
    "changes": {"apply"},
    "copy": {"close"},
    "rename": {"rename_copy"},
    "repair": {"examine"},
    "written": {"find_written", "has_data"},
    "leftovers": {"remove_leftover"},
    "allocate": {"reserve", "publish"},
    "probe": {"probe_disk"},
    "remove": {"remove_file", "retire_file", "drop_retired", "list_retired", "punch_fd", "punch_retired"},
}
"""module -> functions that may wait for a disk, so never called straight from the event loop."""

BLOCKING_NAMES = {"open", "stat_fd", "stat_name", "stat_names", "stat_changes", "measure_usage", "sleep"}

CLOCKS = {
    "time": {
        *("clock_gettime", "gmtime", "localtime", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"),
        *("process_time", "sleep", "thread_time", "time", "time_ns"),
    },
    "datetime": {"now", "today", "utcnow"},
    "date": {"today"},
}
"""module or class -> functions that read a clock, or wait by it. With a time, gmtime and localtime read none."""

WITHOUT_CLOCKS = ("console", "exporter", "fusefs", "pipeline", "store")
"""Packages in which only store/clock.py reads a clock."""

TIMES_ELSEWHERE = {
    "store/disks/forecast.py": "windows of an estimate",
    "store/files/locks.py": "pause of a loop at the start",
    "store/files/remove.py": "pause of a loop of milliseconds",
    "store/moves/levelling.py": "largest result of an estimate",
    "store/moves/throttle.py": "memory of a rate",
    "store/pool/open.py": "patience of a start",
    "store/retention/clocks.py": "threshold for a difference of two clocks",
    "store/retention/simulated_broker.py": "RocketMQ's",
    "store/scrub/estimate.py": "windows of an estimate",
    "store/scrub/progress.py": "limit of a record",
    "store/scrub/schedule.py": "default of the configuration, and units",
    "store/scrub/verdict.py": "limit of a record",
    "store/slowness/policy.py": "threshold for what was measured",
    "fusefs/files/attrs.py": "for the kernel's memory",
    "fusefs/files/creation.py": "threshold for a warning",
    "fusefs/operations.py": "threshold for a warning",
    "mount/daemon/former_daemons.py": "pause of a loop",
    "mount/keeper/options.py": "default of an option",
}
"""Modules of the daemon and its keeper with constants in seconds that store/timing.py lacks, and why."""

TIMED = ("store", "fusefs", "mount/daemon", "mount/journal", "mount/keeper", "mount/status")


LOOP_EXCEPTIONS: set[tuple[str, str, str]] = set()
"""Calls that may wait for a disk in the event loop, by file, function and call. There is none."""


GATE_EXCEPTIONS = {
    "tests/support/waiting.py": "the one place that waits",
    "tests/support/faulty_s3.py::_handler": "a server that is slow on purpose",
    "tests/fusefs/files/test_answers_from_memory.py::Served.seconds": "in virtual time",
    "tests/support/flaky_disks.py": "what tests that are marked `alone` use",
    "tests/support/freezing.py::frozen": "the same",
    "tests/support/fuse_backup.py::main": "a server that is slow on purpose",
    "tests/support/open_reader.py::_read": "the load of a soak, which measures its own reads",
    "tests/support/simulation/broker.py": "in simulated time",
    "tests/support/simulation/disks.py": "in simulated time",
    "tests/support/simulation/life.py": "in simulated time",
    "tests/support/simulation/world.py": "in simulated time",
    "tests/simulation/test_life.py": "in simulated time",
    "tests/simulation/test_reactions.py": "in simulated time",
    "tests/support/slow_query.py::_main": "a query that takes a while, so that it can be interrupted",
    "tests/support/spark_driver.py::_count": "a job that takes a while, so that it can be interrupted",
    "tests/support/stub_daemon.py": "a daemon that is as slow as its script says, and polls for files",
    "tests/test_architecture.py::test_the_search_for_breaches_of_the_gate_finds_them": "its text is data",
    "tests/exporter/test_figures.py::test_mounts_that_cannot_be_looked_for_stay": "polls as `until`, under asyncio",
    "tests/fusefs/disks/test_background.py::create_waits": "gives a create the opportunity to end too early",
    "tests/fusefs/disks/test_reminders.py": "trio.run gets a MockClock in the helper `run`",
    "tests/fusefs/files/test_hedged_creates.py::virtual_time": "trio.run gets a MockClock in the fixture `live`",
    "tests/fusefs/files/test_hedged_creates_fuzz.py::LockLife._hold": "trio.run gets a MockClock",
    "tests/fusefs/integrity/test_checksums.py::Background.require": "gives time for one checksum too many",
    "tests/fusefs/integrity/test_scrub.py::Daemon.stays": "gives an opportunity for a change of the state",
    "tests/mount/keeper/test_keeper.py::TestWithMount.test_a_stop_that_was_refused_is_over": (
        "gives the keeper the opportunity to send a second signal"
    ),
    "tests/mount/status/test_composed.py": "trio.run gets a MockClock in the helper `run`",
    "tests/mounted/test_checksums.py::test_a_store_to_an_open_mapping_is_never_missed": (
        "gives the daemon the opportunity to compute a checksum that is too old"
    ),
    "tests/mounted/test_growth.py::append": "used by a test of the timing lane",
    "tests/mounted/test_lost_writes.py::touch_error": "used by tests that are marked `alone`",
    "tests/mounted/test_same_name_again.py::free_blocks": "used by a test that is marked `alone`",
    "tests/mounted/test_passthrough.py::test_a_mapping_without_a_descriptor_holds_a_removed_segment": (
        "gives the daemon the opportunity to free a file that is in use"
    ),
    "tests/mounted/test_top.py::test_a_resize_is_followed_at_once": (
        "lets the second frame pass, so that the resize is the reason of the next one"
    ),
    "tests/pipeline/log/test_tail.py::test_a_broker_that_writes_on_and_on_does_not_hold_us_up": (
        "a writer that pauses between two messages"
    ),
    "tests/pipeline/source/test_stream_reader.py::test_each_message_once_while_a_writer_appends": (
        "a writer that leaves parts of records for the reader to see"
    ),
    "tests/takeover/test_checksums.py::read_beside_a_hung_disk": "used by tests that are `alone` or `timing`",
    "tests/takeover/test_disk_drain.py::change_beside_a_hung_disk": ("used by tests that are `alone` or `timing`"),
    "tests/takeover/test_disk_drain.py::test_a_slow_cut_while_the_drain_continues": "a cut that is slow on purpose",
    "tests/takeover/test_disk_drain.py::test_a_reader_of_an_older_copy_brings_it_not_back": (
        "gives the old copy the opportunity to come back"
    ),
    "tests/takeover/test_repair.py::test_an_older_time_of_the_copy_brings_nothing_back": (
        "gives the damaged file the opportunity to come back"
    ),
    "tests/takeover/test_scrub.py::test_orders_are_known_to_the_next_daemon": (
        "gives a paused scrub the opportunity to read"
    ),
    "tests/takeover/test_takeover.py::test_requests_wait_for_the_successor": (
        "lets the requests be sent first; a later one is answered as well"
    ),
}
"""Function or file of the tests -> why it may do what the gate may not. No sleep here decides a test: on a busy
machine it gives less opportunity for something wrong, and makes nothing right fail."""


@dataclass(frozen=True)
class Import:
    where: str
    module: str

    @property
    def library(self) -> str:
        return self.module.partition(".")[0]

    @property
    def package(self) -> str:
        """`store` for commitlogfs.store.segment."""
        return self.module.split(".")[1] if self.library == "commitlogfs" and "." in self.module else ""


def modules_of(directory: str) -> list[Path]:
    return sorted((ROOT / directory).rglob("*.py"))


def imports_of(tree: ast.AST, where: str) -> Iterator[Import]:
    """Imports inside functions and TYPE_CHECKING blocks count too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(where, alias.name)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{where}:{node.lineno}: relative import"
            if node.module == "commitlogfs":
                for alias in node.names:
                    yield Import(where, f"commitlogfs.{alias.name}")
            else:
                yield Import(where, str(node.module))


def imports_below(directory: str) -> list[Import]:
    return [
        found
        for path in modules_of(directory)
        for found in imports_of(ast.parse(path.read_text()), str(path.relative_to(ROOT)))
    ]


def blocking_calls(function: ast.AsyncFunctionDef) -> Iterator[tuple[int, str]]:
    """Calls made by the coroutine itself; functions and lambdas within it run wherever they are handed to."""
    pending: list[ast.AST] = list(function.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        pending.extend(ast.iter_child_nodes(node))
        if not isinstance(node, ast.Call):
            continue
        match node.func:
            case ast.Attribute(value=ast.Name(id=module), attr=name) if name in BLOCKING.get(module, ()):
                yield node.lineno, f"{module}.{name}"
            case ast.Name(id=name) if name in BLOCKING_NAMES:
                yield node.lineno, name


@pytest.mark.parametrize("directory", PACKAGES)
def test_packages_depend_in_one_direction(directory: str) -> None:
    astray = [
        f"{i.where} imports {i.module}"
        for i in imports_below(directory)
        if i.package not in {"", *ALLOWED[directory]}
    ]
    assert not astray


@pytest.mark.parametrize("directory", sorted(FORBIDDEN))
def test_libraries_stay_where_they_belong(directory: str) -> None:
    astray = [
        f"{i.where} imports {i.module}" for i in imports_below(directory) if i.library in FORBIDDEN[directory]
    ]
    assert not astray


def test_the_rocketmq_driver_knows_nothing_of_the_filesystem() -> None:
    """It also drives the native broker, and must be independent of the filesystem under test."""
    found = imports_below("bench/rocketmq")
    assert found
    astray = [
        f"{i.where} imports {i.module}"
        for i in found
        if i.library == "commitlogfs" and not i.module.startswith("commitlogfs.bench.rocketmq")
    ]
    assert not astray


def directories() -> dict[str, list[Path]]:
    """Directory -> its modules, without `__init__.py`. `fusefs` stands for the modules directly in it."""
    found: dict[str, list[Path]] = {}
    for path in [p for layers in LAYERS for p in modules_of(layers[0].partition(".")[0])]:
        if path.name != "__init__.py":
            found.setdefault(".".join(path.relative_to(ROOT).parts[:-1]), []).append(path)
    return found


def directory_of(module: str) -> str:
    """`mount.keeper` for commitlogfs.mount.keeper.loop."""
    parts = module.split(".")[1:]
    while parts and not (ROOT.joinpath(*parts) / "__init__.py").exists():
        parts.pop()
    return ".".join(parts)


def test_every_directory_has_its_layer() -> None:
    assert set(directories()) == {directory for layers in LAYERS for directory in layers}


@pytest.mark.parametrize("layers", LAYERS, ids=lambda layers: layers[0].partition(".")[0])
def test_directories_import_from_lower_layers(layers: tuple[str, ...]) -> None:
    height = {directory: index for index, directory in enumerate(layers)}
    astray = [
        f"{found.where} imports {found.module}"
        for directory in layers
        for path in directories()[directory]
        for found in imports_of(ast.parse(path.read_text()), str(path.relative_to(ROOT)))
        if found.library == "commitlogfs" and height.get(directory_of(found.module), -1) > height[directory]
    ]
    assert not astray


def test_no_directory_is_crowded() -> None:
    crowded = {directory for directory, paths in directories().items() if len(paths) > LARGEST_DIRECTORY}
    assert crowded == set(LARGER_DIRECTORIES)


def test_every_directory_says_what_belongs_there() -> None:
    silent = [name for name in directories() if not _says(ROOT / name.replace(".", "/") / "__init__.py")]
    assert not silent


def _says(init: Path) -> bool:
    return len((ast.get_docstring(ast.parse(init.read_text())) or "").split("\n\n")) == 2


def test_the_daemon_loads_no_library_of_the_command_line() -> None:
    """It would make each start longer by a tenth."""
    code = "import sys, commitlogfs.mount.serve; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True).stdout
    assert "commitlogfs.mount.serve" in loaded.split()
    assert not {"typer", "rich", "tomlkit", "numpy", "pyspark"} & set(loaded.split())


def test_one_place_reads_the_clock() -> None:
    """So that a simulation decides what time it is."""
    found = [
        f"{path.relative_to(ROOT)}:{line} {call}"
        for package in WITHOUT_CLOCKS
        for path in modules_of(package)
        if path != ROOT / "store/clock.py"
        for line, call in clock_readings(ast.parse(path.read_text()))
    ]
    assert not found


def clock_readings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(ast.Name(module), name), args=arguments):
                if name in CLOCKS.get(module, ()) and not (name in {"gmtime", "localtime"} and arguments):
                    yield node.lineno, f"{module}.{name}"
            case ast.ImportFrom(module="time", names=names):
                yield from ((node.lineno, f"time.{alias.name}") for alias in names if alias.name in CLOCKS["time"])
            case ast.keyword(value=ast.Attribute(ast.Name("time"), name)) if name in CLOCKS["time"]:
                yield node.value.lineno, f"time.{name}"


def test_the_search_for_clocks_finds_them() -> None:
    source = """
from time import monotonic, struct_time
now = time.time()
later(clock=time.monotonic)
hour = time.localtime().tm_hour
of_another = time.localtime(now).tm_hour
day = datetime.now(UTC)
wait(self.clock.monotonic())
"""
    assert sorted(clock_readings(ast.parse(source))) == [
        (2, "time.monotonic"),
        (3, "time.time"),
        (4, "time.monotonic"),
        (5, "time.localtime"),
        (7, "datetime.now"),
    ]


def test_one_place_holds_the_times() -> None:
    """Intervals, patiences and paces; so that a test or a simulation gives others."""
    with_times = {
        str(path.relative_to(ROOT))
        for directory in TIMED
        for path in (ROOT / directory).rglob("*.py")
        if any(is_in_seconds(statement) for statement in ast.parse(path.read_text()).body)
    }
    assert sorted(with_times) == sorted(TIMES_ELSEWHERE)


def is_in_seconds(statement: ast.stmt) -> bool:
    """Whether it gives a constant in seconds its value."""
    match statement:
        case ast.Assign(targets=[ast.Name(name)]) | ast.AnnAssign(target=ast.Name(name)):
            return name.isupper() and name.endswith("_S")
    return False


def test_no_package_code_imports_tests() -> None:
    libraries = {i.library for directory in PACKAGES for i in imports_below(directory)}
    assert not libraries & {"tests", "support", "pytest", "hypothesis"}


@pytest.mark.parametrize(
    "path", [p for f in PACKAGES for p in modules_of(f)], ids=lambda p: str(p.relative_to(ROOT))
)
def test_every_module_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text())), f"{path.relative_to(ROOT)} has no docstring"


def test_nothing_waits_for_each_disk_of_the_machine() -> None:
    """As `os.sync` does, also for one that hangs."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for package in ("console", "exporter", "fusefs", "mount", "pipeline", "pyspark_commitlog", "store")
        for path in modules_of(package)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "os.sync"
    ]
    assert not found


def test_the_event_loop_never_waits_for_a_disk() -> None:
    found = set()
    for path in [*modules_of("fusefs"), ROOT / "mount/location/control_socket.py"]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.AsyncFunctionDef):
                found |= {(path.name, node.name, call, line) for line, call in blocking_calls(node)}
    astray = [
        f"{file}:{line} {call}"
        for file, name, call, line in sorted(found)
        if (file, name, call) not in LOOP_EXCEPTIONS
    ]
    assert not astray
    unused = LOOP_EXCEPTIONS - {(file, name, call) for file, name, call, _ in found}
    assert not unused, "exceptions that nothing needs any more"


def test_the_search_for_blocking_calls_finds_them() -> None:
    source = """
async def handler(self):
    data = os.pread(1, 2, 3)
    await run(lambda: os.unlink("x"))
    def work():
        os.fsync(1)
    time.sleep(1)
    with open("x") as f:
        pass
    names = [name for name in os.listdir(".")]
"""
    (function,) = ast.parse(source).body
    assert isinstance(function, ast.AsyncFunctionDef)
    assert sorted(call for _, call in blocking_calls(function)) == ["open", "os.listdir", "os.pread", "time.sleep"]


def test_the_gate_measures_no_time_and_disturbs_nothing() -> None:
    found = breaches_of(modules_of("tests"), ROOT)
    allowed = {breach for breach in found if {breach.where, breach.where.partition("::")[0]} & set(GATE_EXCEPTIONS)}
    assert [f"{breach.where} {breach.what}" for breach in found if breach not in allowed] == []
    used = {name for breach in allowed for name in (breach.where, breach.where.partition("::")[0])}
    assert sorted(set(GATE_EXCEPTIONS) - used) == [], "exceptions that nothing needs any more"


def test_the_search_for_breaches_of_the_gate_finds_them(tmp_path: Path) -> None:
    source = """
import pytest
pytestmark = [pytest.mark.root]
def test_waits():
    time.sleep(1)
async def test_polls():
    await trio.sleep(0)
    await trio.sleep(0.1)
    with trio.fail_after(5):
        pass
def test_is_quick():
    began = time.monotonic()
    assert time.monotonic() - began < 2
@pytest.mark.timing
def test_measures():
    time.sleep(1)
@pytest.mark.alone
def test_syncs():
    os.sync()
@pytest.mark.full
def test_freezes():
    time.sleep(1)
    subprocess.run(["fsfreeze", "-f", disk])
def test_is_impatient():
    eventually(is_done, 10.0)
    daemon.wait(timeout=120)
@pytest.mark.timing
def a_helper():
    subprocess.run(["sync"])
class TestAll:
    def test_everything(self):
        os.sync()
        with frozen(disk):
            os.nice(3)
@pytest.mark.parametrize("n", [1, pytest.param(2, marks=pytest.mark.soak)])
async def test_in_simulated_time(autojump_clock, n):
    await trio.sleep(3600)
def test_makes_data():
    return time.monotonic() + 3
"""
    (tmp_path / "tests").mkdir()
    path = tmp_path / "tests" / "test_x.py"
    path.write_text(source)
    assert [(b.where.partition("::")[2], b.what) for b in breaches_of([path], tmp_path)] == [
        ("test_waits", "sleeps: time.sleep"),
        ("test_polls", "limits time: trio.fail_after"),
        ("test_polls", "sleeps: trio.sleep"),
        ("test_is_quick", "measures time: time.monotonic"),
        ("test_freezes", "disturbs the machine: fsfreeze"),
        ("test_is_impatient", "is impatient: eventually 10"),
        ("a_helper", "disturbs the machine: sync"),
        ("TestAll.test_everything", "changes a priority: os.nice"),
        ("TestAll.test_everything", "disturbs the machine: frozen"),
        ("TestAll.test_everything", "disturbs the machine: sync"),
    ]
    assert lanes_in(path)["test_measures"] == "timing"
    assert set(lanes_in(path).values()) == {"gate", "full", "timing"}
    assert lanes_of_file(path) == ["full", "gate", "soak", "timing"]
