"""Lint: no function is more complex than LIMIT (McCabe, as radon counts it: `and` and `or` are branches, too).

Usage: scripts/check_complexity.py DIRECTORY ...
"""

import sys
from pathlib import Path

from radon.complexity import cc_visit

LIMIT = 15

_DECODER = "one loop over bytes, compiled by numba: a call costs more than a branch"
EXCEPTIONS = {
    "pipeline/arrays/java_text.py: _next": _DECODER,
    "pipeline/arrays/properties.py: _parse": _DECODER,
    "pipeline/arrays/walk.py: _verdict_on": _DECODER,
}
"""Functions that may be more complex, with the reason."""


def complex_functions(directories: list[Path]) -> dict[str, tuple[int, int]]:
    """Line and complexity of each function above LIMIT, by "path: name"."""
    found = {}
    for path in sorted(path for directory in directories for path in directory.rglob("*.py")):
        for block in cc_visit(path.read_text()):
            for function in (*getattr(block, "methods", ()), block):
                if not hasattr(function, "methods") and function.complexity > LIMIT:
                    found[f"{path}: {function.name}"] = function.lineno, function.complexity
    return found


def main(directories: list[Path]) -> int:
    """The exit status: 1 if a function is too complex, or an exception is no longer needed."""
    found = complex_functions(directories)
    for name, (line, complexity) in found.items():
        if name not in EXCEPTIONS:
            print(f"{name} (line {line}): complexity {complexity}; split it, the limit is {LIMIT}")
    for name in EXCEPTIONS.keys() - found.keys():
        print(f"{name}: is not above {LIMIT}; remove it from EXCEPTIONS")
    return int(found.keys() != EXCEPTIONS.keys())


if __name__ == "__main__":
    sys.exit(main([Path(argument) for argument in sys.argv[1:]]))
