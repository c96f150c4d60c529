"""Rules and dashboard of monitoring/, read as their programs do."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

MONITORING = Path(__file__).resolve().parents[2] / "monitoring"
RULES = MONITORING / "rules" / "commitlogfs.rules.yml"
RULE_TESTS = sorted((MONITORING / "rules" / "tests").glob("*.yml"))
DASHBOARD = MONITORING / "grafana" / "commitlogfs.json"

_SECONDS = {"s": 1, "m": 60, "h": 3600}
_METRIC = re.compile(r"(?<![\w:])commitlogfs_(\w+)(?!:)\b")
_OF_HISTOGRAM = re.compile(r"(_seconds)_(?:bucket|sum|count)$")


def seconds(duration: str) -> int:
    """Seconds of "90s" or "1m30s"."""
    return sum(int(number) * _SECONDS[unit] for number, unit in re.findall(r"(\d+)([smh])", duration))


def rules() -> list[dict[str, Any]]:
    """All rules, in the order of the file."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def alert_rules() -> dict[str, dict[str, Any]]:
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


def rule_expressions() -> list[str]:
    return [rule["expr"] for rule in rules()]


def dashboard_expressions() -> list[str]:
    """Expressions of all panels and annotations."""
    dashboard = json.loads(DASHBOARD.read_text())
    annotations = [annotation["expr"] for annotation in dashboard["annotations"]["list"]]
    return annotations + [target["expr"] for panel in _panels(dashboard["panels"]) for target in panel["targets"]]


def metrics_of(expression: str) -> set[str]:
    """Names of the metrics in an expression as the table has them. Recorded ones do not count."""
    return {_OF_HISTOGRAM.sub(r"\1", name) for name in _METRIC.findall(expression)}


def _panels(panels: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for panel in panels:
        yield from _panels(panel.get("panels", []))
        if panel["type"] != "row":
            yield panel
