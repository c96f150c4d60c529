"""The rules of Prometheus: right by promtool, each alert with its two cases, its runbook and its line in docs/."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from support.monitoring import MONITORING, RULE_TESTS, RULES, alert_rules, seconds

from commitlogfs.mount.status.alerts import ADVICE

ROOT = Path(__file__).resolve().parents[2]
BASE = "https://commitlogfs.example/docs/runbooks/"
CODES_WITH_A_METRIC = {
    "degraded": "CommitlogfsDegraded",
    "log-gap": "CommitlogfsLogGap",
    "damaged-segment": "CommitlogfsDamagedSegment",
    "members-lagging": "CommitlogfsMembersLagging",
    "state-lost": "CommitlogfsStateLost",
    "no-takeover": "CommitlogfsNoTakeover",
    "disk-failed": "CommitlogfsDiskFailed",
    "disk-unreadable": "CommitlogfsDiskUnreadable",
    "disk-unresponsive": "CommitlogfsDiskUnresponsive",
    "disk-vanished": "CommitlogfsDiskVanished",
    "disk-slow": "CommitlogfsDiskSlow",
}
"""Alerts of the daemon whose cause is a metric of its own, and the rule that watches it."""
SCRAPE_AND_EVALUATION_S = 30

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool")


@needs_promtool
def test_prometheus_accepts_rules_and_configuration(tmp_path: Path) -> None:
    subprocess.run(["promtool", "check", "rules", "--lint-fatal", RULES], check=True)
    text = (MONITORING / "prometheus.yml").read_text()
    (tmp_path / "prometheus.yml").write_text(text.replace("/etc/prometheus/rules", str(RULES.parent)))
    subprocess.run(["promtool", "check", "config", tmp_path / "prometheus.yml"], check=True)


@pytest.mark.skipif(shutil.which("amtool") is None, reason="no amtool")
def test_alertmanager_accepts_its_configuration() -> None:
    subprocess.run(["amtool", "check-config", MONITORING / "alertmanager.yml"], check=True)


@needs_promtool
def test_each_alert_fires_when_it_should() -> None:
    done = subprocess.run(["promtool", "test", "rules", *RULE_TESTS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_firing_and_a_silent_case() -> None:
    cases = [
        (case["alertname"], bool(case["exp_alerts"]))
        for file in RULE_TESTS
        for test in yaml.safe_load(file.read_text())["tests"]
        for case in test["alert_rule_test"]
    ]
    assert sorted(cases) == sorted((name, fires) for name in alert_rules() for fires in (True, False))


def test_each_alert_has_texts_a_severity_and_a_runbook() -> None:
    for name, rule in alert_rules().items():
        assert rule["labels"]["severity"] in ("critical", "warning"), name
        annotations = rule["annotations"]
        assert set(annotations) == {"summary", "description", "runbook_url"}, name
        assert annotations["runbook_url"].startswith(BASE), name
        assert (ROOT / "docs/runbooks" / annotations["runbook_url"].removeprefix(BASE)).exists(), name


def test_each_alert_of_the_daemon_has_a_rule() -> None:
    by_code = {
        code: name for name, rule in alert_rules().items() for code in re.findall(r'code="([\w-]+)"', rule["expr"])
    }
    by_code |= CODES_WITH_A_METRIC
    assert set(by_code) == {code.value for code in ADVICE}
    for code, advice in ADVICE.items():
        rule = alert_rules()[by_code[code.value]]
        urgency = {"critical": "now", "warning": "tomorrow"}[rule["labels"]["severity"]]
        runbook = rule["annotations"]["runbook_url"].removeprefix(BASE).removesuffix(".md")
        assert (code.value, urgency) == (code.value, advice.urgency.value)
        assert (code.value, runbook) == (code.value, advice.runbook)


def test_the_document_has_each_alert_and_its_time() -> None:
    text = (ROOT / "docs/monitoring.md").read_text()
    rows = re.findall(
        r"^\| `(\w+)` \| (\w+) \| (\S+(?: \S+)?) \| .* \| \[[^\]]*\]\(runbooks/([\w-]+)\.md\) \|$",
        text,
        re.MULTILINE,
    )
    documented = {name: (severity, _within(time), runbook) for name, severity, time, runbook in rows}
    assert documented == {
        name: (
            rule["labels"]["severity"],
            seconds(rule.get("for", "0s")) + SCRAPE_AND_EVALUATION_S,
            rule["annotations"]["runbook_url"].removeprefix(BASE).removesuffix(".md"),
        )
        for name, rule in alert_rules().items()
    }


def _within(text: str) -> int:
    """Seconds of "30 s" or "1m30s"."""
    return seconds(text.replace(" ", ""))
