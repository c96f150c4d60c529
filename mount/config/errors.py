"""Errors of a configuration file, in terms of the file and not of the parser. Pure."""

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic_core import ErrorDetails

from commitlogfs.console.errors import UsageError

CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


@dataclass(frozen=True, slots=True)
class Problem:
    """One error: the key path as written in the file (or ""), and the fact with its remedy."""

    key: str
    text: str

    def __str__(self) -> str:
        return f"{self.key}: {self.text}" if self.key else self.text


class ConfigError(UsageError):
    """The configuration is not usable. The message is one line, or a heading with one indented line for each
    error."""

    def __init__(self, source: str, *problems: Problem) -> None:
        if len(problems) == 1:
            super().__init__(f"{source}: {problems[0]}")
        else:
            lines = "".join(f"\n  {problem}" for problem in problems)
            super().__init__(f"{source}: {len(problems)} problems{lines}")
        self.source = source
        self.problems = problems


EXAMPLES: Final = {
    "mountpoint": 'mountpoint = "/var/rocketmq/store/commitlog"',
    "disks": 'a [[disks]] table with path = "/data1/commitlog" for each disk',
    "path": 'path = "/data1/commitlog"',
}
_EXPECTED: Final = {
    "string_type": "a text in quotes",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "model_type": "a table",
    "tuple_type": "a list of tables",
    "iterable_type": "a list of tables",
}


def explain(details: ErrorDetails, known: Mapping[str, tuple[str, ...]]) -> Problem:
    """One pydantic error as one line in terms of the file. `known` are the keys of each table, "" the top level."""
    loc = details["loc"]
    key = _format_key(loc)
    last = str(loc[-1]) if loc else ""
    value = details["input"]
    context = details.get("ctx", {})
    match details["type"]:
        case "extra_forbidden":
            return Problem(key, f"unknown key; {_suggest_key(loc, known)}")
        case "missing":
            return Problem(key, f"missing; add {EXAMPLES.get(last, last)}")
        case "literal_error":
            return Problem(key, f"{_show(value)} is not known; {_suggest_value(value, str(context['expected']))}")
        case "value_error":
            return Problem(key, one_line(str(context["error"])))
        case "greater_than_equal":
            return Problem(key, f"{value} is negative; write percent, such as 85")
        case kind if key == "disks" and kind in _EXPECTED:
            return Problem(key, "must be a list of tables; write [[disks]], with two brackets, for each disk")
        case kind if kind in _EXPECTED:
            return Problem(key, f"{_show(value)} is not {_EXPECTED[kind]}; {_type_advice(kind, key)}")
        case _:
            return Problem(key, f"{_show(value)}: {one_line(details['msg'])}; correct the value")


def _type_advice(kind: str, key: str) -> str:
    if kind == "model_type":
        table = re.sub(r"\[[0-9]+\]", "", key)
        if table != "disks":
            return f"write [{table}] on a line of its own and its keys below"
        return f"write [[disks]] on a line of its own and {EXAMPLES['path']} below"
    if kind == "bool_type":
        return "write it without quotes"
    if kind == "string_type":
        return "put it in quotes"
    return "write it without quotes or unit"


def _suggest_key(loc: tuple[int | str, ...], known: Mapping[str, tuple[str, ...]]) -> str:
    wrong = str(loc[-1])
    table = next((str(part) for part in reversed(loc[:-1]) if isinstance(part, str)), "")
    if wrong and wrong in known:
        return f"{wrong} is for the whole log: write {_header(wrong)} as a table of its own"
    # A key that another table has is misplaced, not misspelt.
    for other, keys in known.items():
        if other != table and wrong in keys:
            place = f"in a {_header(other)} table" if other else "at the top"
            return f"{wrong} belongs {place}: move it"
    close = difflib.get_close_matches(wrong.lower().replace("-", "_"), known[table], n=1)
    if close:
        return f"did you mean {close[0]}?"
    return f"remove it; known here: {', '.join(known[table])}"


def _header(table: str) -> str:
    return "[[disks]]" if table == "disks" else f"[{table}]"


def _suggest_value(value: Any, expected: str) -> str:
    allowed = re.findall(r"'([^']*)'", expected)
    close = difflib.get_close_matches(str(value).lower(), allowed, n=1)
    return f'did you mean "{close[0]}"?' if close else "write one of " + ", ".join(f'"{word}"' for word in allowed)


def _format_key(loc: tuple[int | str, ...]) -> str:
    """("disks", 1, "weight") as disks[1].weight; a key that TOML would quote is quoted."""
    text = ""
    for part in loc:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            word = part if re.fullmatch(r"[A-Za-z0-9_-]+", part) else _show(part)
            text += f".{word}" if text else word
    return text


def key_paths(value: Any, loc: tuple[int | str, ...] = ()) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from key_paths(item, (*loc, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from key_paths(item, (*loc, index))
    else:
        yield _format_key(loc)


def _show(value: Any) -> str:
    """The value as it is written in a file, short enough for one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "a list"
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def one_line(text: str) -> str:
    return CONTROL_CHARACTER.sub(" ", text)
