"""The rule of the gate: no test measures time, sleeps, or disturbs the machine. Read from the tests' source."""

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from support.lanes import GATE, LANES, lane_of

ALONE = "alone"
"""Marker of tests that run one after the other in a process of their own, and may disturb the disks."""

_CLOCKS = {
    *(("time", name) for name in ("monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time")),
    ("trio", "current_time"),
}
_SLEEPS = {("time", "sleep"), ("trio", "sleep"), ("asyncio", "sleep")}
_LIMITS = {("trio", name) for name in ("fail_after", "move_on_after", "fail_at", "move_on_at")}
_PRIORITIES = {("os", name) for name in ("nice", "setpriority", "sched_setscheduler", "sched_setaffinity")}
_WAITS = {"eventually", "until", "wait", "join", "communicate", "settimeout"}
_SHORTEST_PATIENCE_S = 60
"""For waits with a limit of their own, such as that for the end of a process."""
_DISTURBING = {"drop_caches", "hanging", "frozen", "lose_power", "refuse_a_page"}
"""Functions of tests/support and bench that stop a device, or act on the caches of the whole machine."""
_DISTURBING_WORDS = ("fsfreeze", "/proc/sys/vm/drop_caches")


@dataclass(frozen=True)
class Breach:
    """Something that the gate must not do, and the function that does it."""

    where: str
    """`tests/mounted/test_growth.py::append`"""
    what: str


def breaches_of(files: Iterable[Path], root: Path) -> list[Breach]:
    """The breaches of all functions that run in the gate; fixtures and helpers count, too."""
    return [
        breach
        for path in files
        for breach in _breaches(ast.parse(path.read_text()), path.relative_to(root).as_posix())
    ]


def lanes_in(path: Path) -> dict[str, str]:
    """Test -> lane, for the tests of one file; `Class.test` for a method. Read from the source."""
    tree = ast.parse(path.read_text())
    return {
        name: lane_of(markers)
        for name, _, markers in _functions(tree.body, _module_markers(tree), "")
        if name.rpartition(".")[2].startswith("test_")
    }


def lanes_of_file(path: Path) -> list[str]:
    """The lanes in which a file has tests, in the order of their names. Single cases of a test may be in another
    lane (`pytest.param(..., marks=...)`), so each marker in the source counts."""
    source = path.read_text()
    return sorted({*lanes_in(path).values(), *(lane for lane in LANES if f"pytest.mark.{lane}" in source)})


def _breaches(tree: ast.Module, file: str) -> Iterator[Breach]:
    of_module = _module_markers(tree)
    for name, function, own in _functions(tree.body, of_module, ""):
        # pytest ignores the markers of a helper.
        markers = own if name.rpartition(".")[2].startswith("test_") else of_module
        lane = lane_of(markers)
        found = list(_takes_time(function)) if lane == GATE else []
        if lane in (GATE, "full") and ALONE not in markers:
            found += _disturbs(function)
        for what in sorted(set(found)):
            yield Breach(f"{file}::{name}", what)


def _functions(
    body: Sequence[ast.stmt], markers: frozenset[str], prefix: str
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef, frozenset[str]]]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _functions(node.body, markers | _markers(node.decorator_list), f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{prefix}{node.name}", node, markers | _markers(node.decorator_list)


def _module_markers(tree: ast.Module) -> frozenset[str]:
    values = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and any(isinstance(t, ast.Name) and t.id == "pytestmark" for t in node.targets)
    ]
    return _markers(values)


def _markers(expressions: Iterable[ast.expr]) -> frozenset[str]:
    """Names of the lanes' markers in decorators or in `pytestmark`. A marker of a single parameter set
    (`pytest.param`) moves only that case to another lane, so it does not count."""
    found = set()
    pending: list[ast.AST] = list(expressions)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "param":
            continue
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute) and node.value.attr == "mark":
            found.add(node.attr)
        pending.extend(ast.iter_child_nodes(node))
    return frozenset(found & {*LANES, ALONE})


def _takes_time(function: ast.AST) -> Iterator[str]:
    simulated = _has_simulated_time(function)
    for node in ast.walk(function):
        if _may_measure(node):
            for part in ast.walk(node):
                if isinstance(part, ast.Call) and _called(part.func) in _CLOCKS:
                    yield f"measures time: {'.'.join(_called(part.func))}"
        if not isinstance(node, ast.Call):
            continue
        owner, name = _called(node.func)
        if (owner, name) in _PRIORITIES:
            yield f"changes a priority: {owner}.{name}"
        elif (owner, name) in _LIMITS and not simulated:
            yield f"limits time: {owner}.{name}"
        elif (owner, name) in _SLEEPS and not (owner == "trio" and (simulated or _is_zero(node))):
            yield f"sleeps: {owner}.{name}"
        elif (limit := _limit_of(node, name)) is not None and 0 < limit < _SHORTEST_PATIENCE_S:
            yield f"is impatient: {name} {limit:g}"


def _disturbs(function: ast.AST) -> Iterator[str]:
    for node in ast.walk(function):
        match node:
            case ast.Call(func=called):
                owner, name = _called(called)
                # BadBlocksDisk.damage; other things that are damaged are files.
                if (owner, name) in (("os", "sync"), ("disk", "damage")) or name in _DISTURBING:
                    yield f"disturbs the machine: {name}"
            case ast.Constant(value=str(text)) if any(word in text for word in _DISTURBING_WORDS):
                yield f"disturbs the machine: {text.partition(chr(10))[0][:40]}"
            case ast.List(elts=[ast.Constant(value="sync")]) | ast.Tuple(elts=[ast.Constant(value="sync")]):
                yield "disturbs the machine: sync"


def _limit_of(call: ast.Call, name: str) -> float | None:
    """The literal limit of a wait: its keyword `timeout` or `timeout_s`, or an argument of a known function."""
    literals = [keyword.value for keyword in call.keywords if keyword.arg in ("timeout", "timeout_s")]
    if not literals and name in _WAITS and isinstance(call.func, ast.Attribute | ast.Name):
        literals = call.args[1:2] if name in ("eventually", "until") else call.args[:1]
    match literals:
        case [ast.Constant(value=int(limit) | float(limit))]:
            return limit
    return None


def _may_measure(node: ast.AST) -> bool:
    """A comparison or a difference. A time alone is data, as is one that a literal makes earlier or later."""
    match node:
        case ast.Compare():
            return True
        case ast.BinOp(op=ast.Sub(), right=ast.Constant()):
            return False
        case ast.BinOp(op=ast.Sub()):
            return True
    return False


def _has_simulated_time(function: ast.AST) -> bool:
    """Whether trio's clock is a MockClock that stands still or jumps: a fixture, or one that the function makes."""
    for node in ast.walk(function):
        match node:
            case ast.arg(arg="autojump_clock" | "mock_clock"):
                return True
            case ast.Call(func=called, keywords=keywords) if _called(called)[1] == "MockClock":
                return not any(keyword.arg == "rate" for keyword in keywords)
    return False


def _called(function: ast.expr) -> tuple[str, str]:
    match function:
        case ast.Attribute(value=ast.Name(id=owner), attr=name):
            return owner, name
        case ast.Attribute(attr=name):
            return "", name
        case ast.Name(id=name):
            return "", name
    return "", ""


def _is_zero(call: ast.Call) -> bool:
    match call.args:
        case [ast.Constant(value=value)]:
            return value == 0
    return False
