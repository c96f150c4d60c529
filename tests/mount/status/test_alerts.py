"""Alerts of a status document."""

from pathlib import Path
from typing import Any

import pytest

from commitlogfs.mount.status.alerts import ADVICE, DerivedCode, find_alerts, is_urgent
from commitlogfs.store.retention import AlertCode

RUNBOOKS = Path(__file__).parents[3] / "docs/runbooks"


def document(**changes: Any) -> dict[str, Any]:
    """The parts of a status document from which alerts follow, of a mount that is well."""
    well = {
        "missing_disks": [],
        "segments": {"gaps": [], "accepted_gaps": 0},
        "scrub": {"damaged": []},
        "placement": {"next_disk": "/data1"},
        "members": {"lagging": []},
        "daemon": {"state_lost": False, "takeover_available": True, "takeover_unavailable_reason": ""},
        "retention": {"alerts": []},
    }
    return well | changes


def codes(**changes: Any) -> list[tuple[str, str | None]]:
    return [(alert["code"], alert["disk"]) for alert in find_alerts(document(**changes))]


def test_every_code_has_advice_and_a_runbook() -> None:
    assert set(ADVICE) == {*AlertCode, *DerivedCode}
    assert {code.value for code in AlertCode}.isdisjoint(code.value for code in DerivedCode)
    assert [one.runbook for one in ADVICE.values() if not (RUNBOOKS / f"{one.runbook}.md").is_file()] == []


def test_a_mount_that_is_well_has_none() -> None:
    assert codes() == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"missing_disks": ["/data2", "/data3"]}, [("degraded", "/data2"), ("degraded", "/data3")]),
        ({"segments": {"gaps": [[0, 1], [2, 3]], "accepted_gaps": 1}}, [("log-gap", None)]),
        ({"segments": {"gaps": [[0, 1]], "accepted_gaps": 1}}, []),
        ({"scrub": {"damaged": [{"disk": "/data1"}, {"disk": "/data1"}]}}, [("damaged-segment", "/data1")]),
        ({"placement": {"next_disk": None}}, [("no-disk-for-the-next", None)]),
        ({"members": {"lagging": ["/data1"]}}, [("members-lagging", "/data1")]),
    ],
)
def test_alerts_that_follow_from_the_state(changes: dict[str, Any], expected: list[tuple[str, str | None]]) -> None:
    assert codes(**changes) == expected


def test_alerts_about_the_daemon_name_the_reason() -> None:
    daemon = {"state_lost": True, "takeover_available": False, "takeover_unavailable_reason": "its keeper has died"}
    lost, alone = find_alerts(document(daemon=daemon))
    assert (lost["code"], alone["code"]) == ("state-lost", "no-takeover")
    assert alone["text"].endswith("its keeper has died")


def test_the_urgent_ones_come_first() -> None:
    slow = {"code": "disk-slow", "disk": "/data1", "text": "slow"}
    stuck = {"code": "stuck", "disk": "/data2", "text": "stuck"}
    found = find_alerts(document(retention={"alerts": [slow, stuck]}, members={"lagging": ["/data3"]}))
    assert [alert["code"] for alert in found] == ["stuck", "disk-slow", "members-lagging"]
    assert found[0]["urgency"] == "now"
    assert found[0]["text"] == "stuck"
    assert (is_urgent("stuck"), is_urgent("disk-slow")) == (True, False)


@pytest.mark.parametrize("code", ["all-full", "no-writable-disk"])
def test_one_alert_is_enough_for_a_log_that_cannot_grow(code: str) -> None:
    own = {"code": code, "disk": None, "text": "full"}
    assert codes(retention={"alerts": [own]}, placement={"next_disk": None}) == [(code, None)]
