"""Tables in docs/ have a row for every verb, exit status, key of the configuration, alert and event of the code."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from commitlogfs.console.exit_status import ExitCode
from commitlogfs.console.units import parse_duration_ms
from commitlogfs.mount import cli
from commitlogfs.mount.config.errors import ConfigError
from commitlogfs.mount.config.model import parse_config
from commitlogfs.mount.config.retention import RetentionTable
from commitlogfs.mount.metrics.table import METRICS
from commitlogfs.mount.status.alerts import ADVICE
from commitlogfs.store.retention import AlertCode, Mode, RetentionRules

ROOT = Path(__file__).parents[2]
DISK = '[[disks]]\npath = "/d"\n'
LOGGING_PACKAGES = ("console", "fusefs", "mount", "store")
COMPUTED_EVENTS = {
    *("connection_aborted", "unmounted"),  # mount/daemon/served_mount.py
    *("daemon_handed_over", "daemon_died", "successor_failed", "successor_refused"),  # mount/keeper/loop.py
}
"""Events whose name is not a literal in the call."""


def rows(document, heading, first_cell):
    """Cells of the table that begins with `first_cell`, in the section under this heading of any level."""
    text = (ROOT / "docs" / document).read_text()
    _, level, rest = re.split(rf"^(#+) {re.escape(heading)}$", text, maxsplit=1, flags=re.MULTILINE)
    section = re.split(rf"^#{{1,{len(level)}}} ", rest, maxsplit=1, flags=re.MULTILINE)[0]
    _, table = section.split(f"\n| {first_cell} |", maxsplit=1)
    lines = re.match(r"[^\n]*\n\|[-|]+\|\n((?:\|.*\|\n)+)", table)[1].splitlines()
    return [split_row(line) for line in lines]


def split_row(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def documented_defaults():
    """`[retention]` `mode` counts as mode."""
    table = rows("reference/configuration.md", "Keys", "key")
    return {re.findall(r"`([^`]*)`", key)[-1]: default.strip("`") for key, default, _ in table}


@pytest.mark.parametrize("table", ["", "[thresholds]\n", "[retention]\n"])
def test_every_key_has_a_row(table):
    with pytest.raises(ConfigError) as caught:
        parse_config(f'mountpoint = "/m"\n{table}xyzzy = 1\n{DISK}', "demo", "demo.toml")
    known = str(caught.value).split("known here: ")[1].split(", ")
    assert len(known) >= 5
    assert set(known) - {"thresholds", "retention", "scrub", "disks"} <= set(documented_defaults())


def test_documented_defaults_of_retention():
    documented, rules = documented_defaults(), RetentionRules()
    assert set(RetentionTable.model_fields) <= set(documented)
    assert documented["mode"] == f'"{rules.mode.value}"'
    for key in ("force_after", "grace", "interval"):
        assert parse_duration_ms(documented[key].strip('"')) == getattr(rules, f"{key}_s") * 1000
    assert documented["batch"] == str(rules.batch)
    assert documented["punch"] == str(rules.punch).lower()
    assert (documented["reserved"], documented["delete_when"]) == ("none", "none")


def test_one_row_for_every_mode_and_every_alert():
    modes, alerts = rows("operating.md", "Forced deletion", "mode"), rows("troubleshooting.md", "Alerts", "alert")
    assert [row[0] for row in modes] == [f"`{mode.value}`" for mode in Mode]
    assert [row[0] for row in alerts] == [f"`{code.value}`" for code in AlertCode]


def test_one_row_for_every_verb_and_exit_status():
    app = cli.application()
    commands = {info.name or info.callback.__name__ for info in app.registered_commands}
    verbs = commands | {group.name or group.typer_instance.info.name for group in app.registered_groups}
    documented = [re.match(r"`([\w-]+)", row[0])[1] for row in rows("reference/cli.md", "Verbs", "verb")]
    assert len(set(documented)) == len(documented)
    assert {verb.replace("_", "-") for verb in verbs} == set(documented)
    statuses = [row[0] for row in rows("reference/cli.md", "Exit statuses", "status")]
    assert statuses == [str(int(code)) for code in ExitCode if code is not ExitCode.HANDED_OVER]


def logged_events() -> Iterator[tuple[str, str]]:
    """(event, file) of every call that logs one under a literal name."""
    for path in sorted(path for package in LOGGING_PACKAGES for path in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            place = {"log_event": 2, "_event_record": 0}.get(called)
            if place is not None and isinstance(name := node.args[place], ast.Constant):
                yield str(name.value), str(path.relative_to(ROOT))


def texts_in_code() -> Iterator[str]:
    """Every string of the code, the fixed parts of formatted ones included."""
    for path in sorted(path for package in LOGGING_PACKAGES for path in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


@pytest.mark.parametrize("heading", ["The mount is refused", "A command refuses"])
def test_quoted_messages_are_those_of_the_code(heading):
    code = "\0".join(texts_in_code())
    cells = " ".join(row[0] for row in rows("troubleshooting.md", heading, "message"))
    quoted = [text for text in re.findall(r"`([^`]+)`", cells) if " " in text]
    ours = [text for text in quoted if not text.startswith(("/", "ln: ", "rm "))]
    assert ours
    assert [text for text in ours if re.split(r"\.\.\.|\(", text)[0].strip() not in code] == []


def test_one_row_for_every_event():
    logged = dict(logged_events())
    assert len(logged) > 50
    text = (ROOT / "docs/reference/events.md").read_text()
    documented = re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)
    assert len(set(documented)) == len(documented)
    assert set(documented) == logged.keys() | COMPUTED_EVENTS


def test_one_row_for_every_alert_that_follows_from_the_state():
    text = (ROOT / "docs/troubleshooting.md").read_text()
    documented = {(row[0], row[1]) for row in map(split_row, text.splitlines()) if len(row) == 4}
    for code, advice in ADVICE.items():
        assert (f"`{code.value}`", advice.urgency.value) in documented


def test_one_row_for_every_metric():
    documented = [row[:3] for row in rows("reference/metrics.md", "Names", "metric")]
    assert documented == [[f"`{row.name}`", row.type.value, ", ".join(row.labels)] for row in METRICS]
