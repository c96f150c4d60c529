"""The committed dashboard is the generated one; it, the rules and the table of metrics name the same metrics."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.monitoring import DASHBOARD, RULES, dashboard_expressions, metrics_of, rule_expressions

from commitlogfs.mount.metrics.table import BY_NAME

ROOT = Path(__file__).resolve().parents[2]
NOT_SHOWN: dict[str, str] = {}
"""Metrics that neither the dashboard nor a rule uses, with the reason."""


def documented() -> set[str]:
    """Names in the tables of metrics: of the daemon, and those that the exporter adds."""
    tables = [(ROOT / "docs/reference/metrics.md").read_text().split("\n## Names\n")[1]]
    tables += [(ROOT / "docs/reference/exporter.md").read_text().split("\n| metric |")[1]]
    rows = [cell for table in tables for cell in re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE)]
    return {name for cell in rows for name in re.findall(r"`(\w+)`", cell)}


def used() -> set[str]:
    return {
        name for expression in (*dashboard_expressions(), *rule_expressions()) for name in metrics_of(expression)
    }


def test_the_committed_dashboard_is_the_generated_one() -> None:
    command = [sys.executable, str(ROOT / "scripts/make_dashboard.py"), "--check"]
    assert subprocess.run(command, check=False).returncode == 0, "run scripts/make_dashboard.py"


def test_every_metric_that_is_used_is_documented() -> None:
    assert used() - documented() == set()


def test_every_metric_is_used() -> None:
    assert set(BY_NAME) - used() == set(NOT_SHOWN)


def panels() -> Iterator[dict[str, Any]]:
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        yield from (panel, *panel.get("panels", ()))


def test_panels_have_descriptions_and_do_not_overlap() -> None:
    found = [panel for panel in panels() if panel["type"] != "row"]
    assert all(panel["title"] and panel["description"] for panel in found)
    numbers = [panel["id"] for panel in panels()]
    assert len(set(numbers)) == len(numbers)
    for places in ([p["gridPos"] for p in row] for row in _rows()):
        cells = [
            (x, y)
            for at in places
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        ]
        assert len(set(cells)) == len(cells)
        assert all(at["x"] + at["w"] <= 24 for at in places)


def _rows() -> Iterator[list[dict[str, Any]]]:
    """Panels that are shown at the same time: those of closed rows lie below their row."""
    top = json.loads(DASHBOARD.read_text())["panels"]
    yield top
    yield from (row["panels"] for row in top if row.get("panels"))


def test_the_search_for_metrics_finds_them() -> None:
    expression = (
        'rate(commitlogfs_a_total{x="y"}[5m]) / pool:commitlogfs_b:ratio and on (pool) commitlogfs_c_seconds_bucket'
    )
    assert metrics_of(expression) == {"a_total", "c_seconds"}
    assert RULES.exists()
