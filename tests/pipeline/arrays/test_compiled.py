"""The rule that keeps numba's cache honest, and what happens without one: see pipeline/arrays/compiled.py."""

import ast
import logging
from pathlib import Path

import pytest
from numba.core.caching import CacheImpl

from commitlogfs.pipeline.arrays import compiled as module

DIRECTORY = Path(__file__).resolve().parents[3] / "pipeline"
SHARED = "commitlogfs.pipeline.arrays.raw_bytes"


def compiled_functions(tree: ast.Module) -> list[ast.FunctionDef]:
    return [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and any(isinstance(decorator, ast.Name) and decorator.id == "compiled" for decorator in node.decorator_list)
    ]


def test_compiled_code_calls_compiled_code_of_its_own_file_only() -> None:
    trees = {path: ast.parse(path.read_text()) for path in DIRECTORY.rglob("*.py")}
    compiled = {function.name: path for path, tree in trees.items() for function in compiled_functions(tree)}
    assert len(compiled) > 10
    foreign = []
    for path, tree in trees.items():
        imported = {
            alias.asname or alias.name: node.module
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        for function in compiled_functions(tree):
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                    module = imported.get(node.func.id)
                    if module is not None and module != SHARED:
                        foreign.append(f"{path.name}: {function.name} calls {module}.{node.func.id}")
    assert foreign == []


def twice(number: int) -> int:
    return 2 * number


def thrice(number: int) -> int:
    return 3 * number


def test_without_a_place_for_the_cache_it_compiles_each_time_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(CacheImpl, "_locator_classes", [])
    module._warn_of_no_cache.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert (module.compiled(twice)(21), module.compiled(thrice)(2)) == (42, 6)
    assert len(caplog.messages) == 1
    assert "NUMBA_CACHE_DIR" in caplog.messages[0]


def test_any_other_failure_to_compile_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numba.core.config.CACHE_LOCATOR_CLASSES", "Nonsense")
    with pytest.raises(RuntimeError, match="NUMBA_CACHE_LOCATOR_CLASSES"):
        module.compiled(twice)
