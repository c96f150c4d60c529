"""The rule that keeps numba's cache honest: see pipeline/compiled.py."""

import ast
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "pipeline"
SHARED = "commitlogfs.pipeline.raw_bytes"


def compiled_functions(tree: ast.Module) -> list[ast.FunctionDef]:
    return [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and any(isinstance(decorator, ast.Name) and decorator.id == "compiled" for decorator in node.decorator_list)
    ]


def test_compiled_code_calls_compiled_code_of_its_own_file_only() -> None:
    trees = {path: ast.parse(path.read_text()) for path in FOLDER.rglob("*.py")}
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
