"""Checks of the running daemon's status, and of the result of a disk probe. Pure."""

from typing import Any, Final

from commitlogfs.console.formatting import count_of
from commitlogfs.mount.doctor.diagnosis import Check, Level, ok
from commitlogfs.mount.doctor.disk_probe import DiskProbe
from commitlogfs.mount.status.alerts import is_urgent
from commitlogfs.store.findings import REPAIR_DISK

_MORE: Final = "`commitlogfs status` shows every disk and alert; docs/troubleshooting.md explains them"
_FINDING_LEVELS: Final = {"note": Level.NOTE, "warning": Level.WARNING}

_GAPS = ("gap", "accepted-loss")
"""Findings about which the status document says more."""


def check_daemon(document: dict[str, Any]) -> list[Check]:
    """A check for everything in the status document that is wrong; one that is ok if nothing is."""
    checks = [_check_alert(alert) for alert in document["retention"]["alerts"]]
    alerted = {alert["disk"] for alert in document["retention"]["alerts"]}
    checks += [check for disk in document["disks"] if (check := _check_disk(disk, alerted)) is not None]
    if document["placement"]["next_disk"] is None:
        message = "no disk takes the next segment, so its create will fail"
        checks.append(Check("no-disk-for-the-next", Level.PROBLEM, message, "free space, or repair or add a disk"))
    if document["degraded"]:
        message = f"served without {', '.join(document['missing_disks'])}"
        checks.append(
            Check("degraded", Level.PROBLEM, message, "bring the disks back, stop the broker, unmount and mount")
        )
    accepted = document["segments"].get("accepted_gaps", 0)  # a daemon of a former version does not report it
    if accepted:
        message = (
            f"the log has {count_of(accepted, 'gap')} of disks that were given up, which consumers skip silently"
        )
        checks.append(Check("accepted-loss", Level.NOTE, message, "nothing to do: they go when they expire"))
    if len(document["segments"]["gaps"]) > accepted:
        count = count_of(len(document["segments"]["gaps"]) - accepted, "gap")
        message = f"the log has {count}, which consumers skip silently"
        checks.append(
            Check(
                "gap",
                Level.PROBLEM,
                message,
                "bring back the disk or the files; `commitlogfs check` names the missing segments",
            )
        )
    if document["daemon"].get("state_lost"):
        message = "a takeover lost the list of open files: fsync and fstat of files opened before it give ESTALE"
        remedy = "restart the broker when convenient, which opens them again"
        checks.append(Check("state-lost", Level.WARNING, message, remedy))
    unknown = document.get("scrub", {}).get("unknown", ())  # a daemon of a former version does not report them
    if unknown:
        message = (
            f"{', '.join(unknown)}: has not answered yet since the daemon has started which segments are damaged"
        )
        checks.append(Check("damage-unknown", Level.NOTE, message, "repeat the command; if it stays, see `dmesg`"))
    checks += [_check_finding(finding) for finding in document["findings"] if finding["code"] not in _GAPS]
    return checks or [ok("daemon", f"daemon {document['daemon']['pid']} reports no trouble")]


def check_probe(path: str, probe: DiskProbe) -> list[Check]:
    if probe.silence:
        return [Check("disk-silent", Level.PROBLEM, f"{path}: {probe.silence}", REPAIR_DISK)]
    checks = []
    if probe.unlisted:
        message = f"{path}: cannot be listed ({probe.unlisted})"
        checks.append(Check("disk-unreadable", Level.PROBLEM, message, REPAIR_DISK))
    if probe.unreadable:
        message = f"{path}: cannot read {', '.join(probe.unreadable)}"
        checks.append(Check("disk-unreadable", Level.PROBLEM, message, REPAIR_DISK))
    if probe.is_full:
        message = f"{probe.not_made}; it takes no new segments"
        checks.append(Check("disk-full", Level.WARNING, message, "free space on that disk"))
    elif probe.not_made:
        message = f"{probe.not_made}; no segment can be made there"
        checks.append(Check("disk-unwritable", Level.PROBLEM, message, REPAIR_DISK))
    return checks or [ok("disk-probe", f"{path}: segments can be read and made")]


def _check_alert(alert: dict[str, Any]) -> Check:
    level = Level.PROBLEM if is_urgent(alert["code"]) else Level.WARNING
    where = f"{alert['disk']}: " if alert["disk"] else ""
    return Check(alert["code"], level, f"{where}{alert['text']}", _MORE)


def _check_disk(disk: dict[str, Any], alerted: set[str]) -> Check | None:
    """The check of one disk; None if it takes segments, or if an alert reports it."""
    path = disk["path"]
    cause = f" ({disk['last_error']})" if disk["last_error"] else ""
    if disk["state"] == "offline":
        return Check("disk-silent", Level.PROBLEM, f"{path}: does not answer the daemon", REPAIR_DISK)
    if disk["state"] in ("unreadable", "unresponsive", "vanished") and path in alerted:
        return None
    if disk["state"] == "failed":
        message = f"{path}: has failed{cause}"
        return None if path in alerted else Check("disk-failed", Level.PROBLEM, message, "repair or replace it")
    if disk["refusal"] == "above-force":
        limits = disk["thresholds"]
        message = f"{path}: above {limits['force']} %, skipped for new segments until below {limits['resume']} %"
        return Check("disk-above-force", Level.NOTE, message, "nothing to do while other disks take segments")
    if cause:
        message = f"{path}: the latest attempt to make a segment there failed{cause}"
        return Check("disk-suspected", Level.WARNING, message, REPAIR_DISK)
    return None


def _check_finding(finding: dict[str, str]) -> Check:
    where = "/".join(part for part in (finding["disk"], finding["file"]) if part)
    message = f"{where}: {finding['message']}" if where else finding["message"]
    level = _FINDING_LEVELS.get(finding["severity"], Level.PROBLEM)
    return Check(finding["code"], level, message, finding["remedy"])
