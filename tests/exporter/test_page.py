"""The exporter's page in a real browser: beside a real mount, and with recorded states."""

import copy
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from support import browser as browsers
from support.browser import THEMES, WIDTHS, Browser
from support.exporters import HOST, running_exporter
from support.filling import fill_to
from support.loop_disks import DiskFarm
from support.pools import MIB, PoolMount, pool_in
from support.waiting import eventually

from commitlogfs.exporter.app import CONTENT_SECURITY_POLICY

pytestmark = [
    pytest.mark.mounted,
    pytest.mark.root,
    pytest.mark.full,
    pytest.mark.skipif(bool(browsers.lack()), reason=browsers.lack() or "has a browser"),
]

PAGE = Path(__file__).parents[2] / "exporter/page"
MARKUP = "<img src=x onerror=alert(1)><b>bold</b>"


@pytest.fixture(scope="module")
def started() -> Iterator[Browser]:
    with browsers.browser() as browser:
        yield browser


@pytest.fixture
def browser(started: Browser) -> Browser:
    """Without a page: that of a test before still asks an exporter that has ended, and its errors come later."""
    started.open("about:blank")
    started.complaints()
    return started


def test_a_mount_live(browser: Browser, disk_farm: DiskFarm, make_pool: Callable[..., PoolMount]) -> None:
    """Healthy; a segment appears; a disk is skipped; the daemon is away; and it is back."""
    disks = [disk_farm.add("ext4").path for _ in range(3)]
    for disk in disks:
        (disk / "log").mkdir()
    pool = make_pool(disks=[disk / "log" for disk in disks], segment_size=4 * MIB)
    pool.start()
    pool.make_segments(range(5))
    with running_exporter(pool.workdir, pool.env, pool.name) as exporter:
        browser.use(1280, "light")
        browser.open(f"http://{HOST}:{exporter.port}/")
        browser.shows(pool.name, "The log has 5 segments on 3 disks")
        browser.driver.find_element("link text", pool.name).click()
        browser.shows("Disks", "Segments by offset", "takes segments", "takes the next segment", str(disks[0]))
        focused = browser.driver.execute_script("return document.activeElement.id")
        assert focused == "main"
        pool.make_segments([5])
        browser.shows("The log has 6 segments")
        fill_to(disks[1], 87)
        browser.shows("skipped for new segments until below 83 %")
        pool.kill()
        browser.shows("daemon away", "this is the last known state")
        assert "The log has 6 segments" in browser.text
        pool.abandon()
        pool.start()
        eventually(lambda: "daemon away" not in browser.text, 120)
        browser.shows("The log has 6 segments")
        # A map of a daemon that is away is refused.
        assert [text for text in browser.complaints() if "503" not in text] == []


# --- recorded states ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded(module_directory: Path) -> dict[str, Any]:
    """The answers of the exporter for a mount of two disks and six segments."""
    with pool_in(module_directory, 2) as pool:
        pool.start()
        pool.make_segments(range(6))
        with running_exporter(pool.workdir, pool.env, pool.name) as exporter:
            eventually(lambda: exporter.mount(pool.name)["status"])
            eventually(lambda: exporter.mount(pool.name)["status"]["segments"]["count"] == 6)
            return {
                "status": exporter.request("/api/status").json(),
                "map": exporter.request(f"/api/mounts/{pool.name}/map").json(),
            }


def mount_of(answers: dict[str, Any]) -> dict[str, Any]:
    mount: dict[str, Any] = answers["status"]["mounts"][0]
    return mount


def healthy(answers: dict[str, Any]) -> None:
    mount_of(answers)["status"]["alerts"] = []


def skipped(answers: dict[str, Any]) -> None:
    status = mount_of(answers)["status"]
    status["disks"][0].update(used_percent=88.2, eligible=False, refusal="above-force", next_threshold="full")


def large(answers: dict[str, Any]) -> None:
    """Twelve disks, and more columns than letters have room."""
    disks = [{"number": number, "path": f"/data{number}/commitlog"} for number in range(1, 13)]
    columns = [
        {"start": index << 30, "segments": 1, "disk": index % 12 + 1, "gap": False, "damaged": False}
        for index in range(300)
    ]
    answers["map"].update(disks=disks, columns=columns, last_offset=299 << 30, segment_size=1 << 30)
    status = mount_of(answers)["status"]
    status["disks"] = [status["disks"][0] | disk for disk in disks]


def of_another_version(answers: dict[str, Any]) -> None:
    other = copy.deepcopy(mount_of(answers))
    other["name"] = "other"
    answers["status"]["mounts"].append(other)
    del mount_of(answers)["status"]["retention"]


def empty(answers: dict[str, Any]) -> None:
    mount_of(answers)["status"]["segments"].update(count=0, first_offset=None, last_offset=None)
    answers["map"]["columns"] = []


def no_mounts(answers: dict[str, Any]) -> None:
    answers["status"]["mounts"] = []


def forced_deletion(answers: dict[str, Any]) -> None:
    status = mount_of(answers)["status"]
    status["retention"].update(removing=3, force_in_seconds=0)
    for disk in status["disks"]:
        disk.update(used_percent=91.5, eligible=False, refusal="no-room", next_threshold=None)
    status["placement"]["next_disk"] = None
    status["alerts"] = [
        {
            "code": "all-full",
            "disk": None,
            "text": "every writable disk is full",
            "urgency": "now",
            "remedy": "add a disk or free space",
            "runbook": "disk-full",
        }
    ]


def degraded(answers: dict[str, Any]) -> None:
    status = mount_of(answers)["status"]
    status.update(degraded=True, missing_disks=["/data9/commitlog"])
    status["disks"][0].update(state="unresponsive", refusal="in-backoff", eligible=False, used_percent=None)
    status["disks"][0]["last_error"] = "/data1: a check has no answer"
    answers["map"]["columns"][2].update(gap=True, segments=0, disk=None)
    answers["map"]["columns"][3].update(damaged=True)


def working(answers: dict[str, Any]) -> None:
    status = mount_of(answers)["status"]
    status["ingest_bytes_per_second"] = 123_456_789.0
    status["scrub"].update(
        state="running", done_bytes=3 << 30, left_bytes=5 << 30, bytes_per_second=2e8, eta_seconds=30.0
    )
    status["moves"]["current"] = {
        "segment": "0" * 20,
        "from": "/data1",
        "to": "/data2",
        "phase": "copying",
        "done_bytes": 1 << 20,
        "size": 1 << 30,
    }
    answers["decisions"] = {"decisions": [{"at": 1_700_000_000, "text": "placed a segment", "sequence": 1}]}


def away(answers: dict[str, Any]) -> None:
    mount_of(answers).update(up=False, error="the daemon does not answer", age_seconds=75.0)


def never_seen(answers: dict[str, Any]) -> None:
    mount_of(answers).update(up=False, error="no daemon serves it", age_seconds=None, status=None)


def markup(answers: dict[str, Any]) -> None:
    mount = mount_of(answers)
    mount.update(name=MARKUP, mountpoint=MARKUP, error=MARKUP)
    for disk in mount["status"]["disks"]:
        disk.update(path=MARKUP, last_error=MARKUP, state=MARKUP)
    mount["status"]["placement"]["next_disk"] = MARKUP
    for disk in answers["map"]["disks"]:
        disk["path"] = MARKUP
    answers["decisions"] = {"decisions": [{"at": 1_700_000_000, "text": MARKUP, "sequence": 1}]}


STATES: dict[str, tuple[Callable[[dict[str, Any]], None], tuple[str, ...]]] = {
    "no mounts": (no_mounts, ("There is no mount on this machine",)),
    "healthy": (healthy, ("well", "takes the next segment", "no gap; no damage")),
    "a disk is skipped": (skipped, ("skipped for new segments until below 83 %",)),
    "twelve disks": (large, ("/data12/commitlog", "L", "no gap")),
    "another version": (of_another_version, ("This mount cannot be shown",)),
    "empty": (empty, ("The log is empty",)),
    "forced deletion": (
        forced_deletion,
        ("Forced deletion is removing 3 segments", "1 urgent alert", "add a disk"),
    ),
    "degraded": (
        degraded,
        ("the mount is degraded", "/data9/commitlog", "has no answer", "gap from offset 2,097,152"),
    ),
    "at work": (
        working,
        ("grows by 118 MiB/s", "Scrub running", f"Moving {'0' * 20}", "placed a segment"),
    ),
    "away": (away, ("daemon away", "has not answered for 75 s")),
    "never seen": (never_seen, ("not running", "no daemon serves it")),
    "markup in names": (markup, (MARKUP,)),
}


@contextmanager
def served(answers: dict[str, Any]) -> Iterator[str]:
    """The address of the page with these answers, under the exporter's own policy."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            kinds = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
            path = self.path.partition("?")[0]
            if path.startswith("/api/"):
                kind = path.rpartition("/")[2]
                answers["status"]["composed_at"] += 1
                body, content_type = json.dumps(answers.get(kind, {"decisions": []})).encode(), "application/json"
            else:
                file = PAGE / (path.removeprefix("/static/").removeprefix("/") or "index.html")
                body, content_type = file.read_bytes(), kinds[file.suffix]
            self.send_response(200)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Security-Policy", CONTENT_SECURITY_POLICY)
            self.end_headers()
            self.wfile.write(body)

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None: ...

    server = http.server.ThreadingHTTPServer((HOST, 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://{HOST}:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("name", STATES)
def test_each_state_reads_well_everywhere(browser: Browser, recorded: dict[str, Any], name: str) -> None:
    """No serious fault of accessibility, nothing wider than the window, no breach of the page's policy."""
    change, texts = STATES[name]
    answers = copy.deepcopy(recorded)
    change(answers)
    with served(answers) as address:
        mounts = answers["status"]["mounts"]
        for place in [f"#/{quote(mounts[0]['name'], safe='')}", ""] if mounts else [""]:
            browser.open("about:blank")
            browser.open(f"{address}{place}")
            browser.shows(*(texts if place or not mounts else [mounts[0]["name"]]))
            for theme in THEMES:
                for width in reversed(WIDTHS):
                    browser.use(width, theme)
                    assert browser.overflow() == 0, (place, theme, width)
                assert browser.accessibility_faults() == []
            browser.use(1920, "light")
            assert browser.accessibility_faults() == []
        assert browser.complaints() == []
        assert browser.driver.execute_script("return document.querySelectorAll('b, img').length") == 0


def test_the_keyboard_and_a_wrong_address(browser: Browser, recorded: dict[str, Any]) -> None:
    """The skip link stays on the mount; a wrong address does not stop the page; reading anew moves nothing."""
    browser.use(360, "light")
    with served(copy.deepcopy(recorded)) as address:
        browser.open(f"{address}#/%")
        browser.shows("There is no mount % any more", "Mounts of this machine")
        browser.open(f"{address}#/{mount_of(recorded)['name']}")
        browser.shows("Segments by offset")
        browser.driver.execute_script("document.querySelector('.skip').click()")
        assert browser.driver.execute_script("return document.activeElement.id") == "main"
        assert "Segments by offset" in browser.text
        browser.driver.execute_script("document.querySelector('nav a').focus(); scrollTo(0, 300)")
        freshness = "return document.querySelector('#freshness').textContent"
        before = browser.driver.execute_script(freshness)
        eventually(lambda: browser.driver.execute_script(freshness) != before)
        assert browser.driver.execute_script("return document.activeElement.tagName") == "A"
        assert browser.driver.execute_script("return scrollY") == 300


def test_an_exporter_that_ends_is_noticed(browser: Browser, recorded: dict[str, Any]) -> None:
    with served(copy.deepcopy(recorded)) as address:
        browser.open(address)
        browser.shows("Read at")
    browser.shows("The exporter has not answered for")
    assert mount_of(recorded)["name"] in browser.text
