"""The figures of daemons that hang or lie, and of mounts that cannot be looked for."""

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.types import ASGIApp, Message
from support.scripted_daemon import scripted_daemon
from support.waiting import PATIENCE_S

from commitlogfs.console.errors import UnreachableError, UserError
from commitlogfs.exporter import figures as figures_module
from commitlogfs.exporter.app import make_app
from commitlogfs.exporter.figures import MOST_QUESTIONS, Figures
from commitlogfs.exporter.mounts import FoundMount

SOCKET = "alpha.stat"
NOT_UTF8 = "/mnt/\udcff"
STATUS: dict[str, Any] = {"mountpoint": NOT_UTF8, "disks": []}
METRICS = {"text": 'commitlogfs_disk_segments{disk="/mnt/\udcff",pool="alpha"} 2.0\n'}


def run(directory: Path, test: Callable[[Figures], Awaitable[None]]) -> None:
    async def inside() -> None:
        async with Figures(lambda: [FoundMount("alpha", NOT_UTF8, True, (directory / SOCKET,))]) as figures:
            await test(figures)

    asyncio.run(inside())


async def get(app: ASGIApp, path: str) -> bytes:
    """Body of an answer, which must have status 200."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": [], "root_path": ""}
    await app(scope, receive, send)
    assert sent[0]["status"] == 200
    return b"".join(message["body"] for message in sent[1:])


async def fetched(figures: Figures) -> Any:
    return (await figures.recent(PATIENCE_S, 0.0))[0]


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures_module, "ANSWER_TIMEOUT_S", 2 * PATIENCE_S)


@pytest.mark.parametrize(
    "lie",
    [
        {"status": STATUS, "metrics": {}},
        {"status": STATUS, "metrics": {"text": 7}},
        {"status": STATUS, "metrics": {"text": "no metrics {{{"}},
        {"status": STATUS, "metrics": [1]},
    ],
)
def test_an_answer_that_is_not_understood_is_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lie: dict[str, Any]
) -> None:
    async def test(figures: Figures) -> None:
        assert (await fetched(figures)).is_up
        served.answers = lie
        monkeypatch.setattr(figures_module, "MAX_AGE_S", 0.0)  # from now on, each reader gets new figures
        mount = await fetched(figures)
        assert not mount.is_up
        assert mount.error
        served.answers = {"status": STATUS, "metrics": METRICS}
        assert (await fetched(figures)).is_up

    with scripted_daemon(tmp_path / SOCKET, status=STATUS, metrics=METRICS) as served:
        run(tmp_path, test)


def test_readers_who_ask_the_same_share_an_answer_and_delay_no_figures(tmp_path: Path) -> None:
    async def test(figures: Figures) -> None:
        served.held = {"segments"}
        asked = [asyncio.create_task(figures.ask("alpha", "segments")) for _ in range(50)]
        others = [
            asyncio.create_task(figures.ask("alpha", "decisions", limit=limit)) for limit in range(MOST_QUESTIONS)
        ]
        refused = (await asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED))[0]
        assert [type(task.exception()) for task in refused] == [UnreachableError]
        assert (await fetched(figures)).is_up
        assert sum(task.done() for task in others) == 1
        assert not any(task.done() for task in asked)
        served.release()
        assert await asyncio.gather(*asked) == [{"segments": []}] * 50
        assert served.asked.count("segments") == 1

    answers = {"status": STATUS, "metrics": METRICS, "segments": {"segments": []}, "decisions": {}}
    with scripted_daemon(tmp_path / SOCKET, **answers) as served:
        run(tmp_path, test)


def test_a_question_that_fails_is_asked_again(tmp_path: Path) -> None:
    async def test(figures: Figures) -> None:
        with pytest.raises(UserError):
            await figures.ask("alpha", "segments")
        with scripted_daemon(tmp_path / SOCKET, segments={"segments": []}):
            assert await figures.ask("alpha", "segments") == {"segments": []}

    run(tmp_path, test)


def test_mounts_that_cannot_be_looked_for_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(figures_module, "INTERVAL_S", 0.05)
    names = iter(["alpha", "", "beta"])

    def discover() -> list[FoundMount]:
        name = next(names, "beta")
        if not name:
            raise RuntimeError("broken")
        return [FoundMount(name, "", False, ())]

    async def before_and_after() -> list[str]:
        async with Figures(discover) as figures:
            before = now = [one.found.name for one in await figures.recent()]
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE_S):
                    while now == before:
                        await asyncio.sleep(0.01)
                        now = [one.found.name for one in await figures.recent()]
            return before + now

    with caplog.at_level(logging.ERROR):
        assert asyncio.run(before_and_after()) == ["alpha", "beta"]
    assert "cannot look for mounts" in caplog.text


def test_a_path_that_is_not_utf8_and_a_daemon_of_a_former_version(tmp_path: Path) -> None:
    segments = {"name": "alpha", "segment_size": 1, "disks": {"1": NOT_UTF8}, "segments": [[0, 1]]}

    async def test(figures: Figures) -> None:
        await fetched(figures)
        app = make_app(figures)
        assert json.loads(await get(app, "/api/status"))["mounts"][0]["mountpoint"] == NOT_UTF8
        assert json.loads(await get(app, "/api/mounts/alpha/map"))["disks"] == {"1": NOT_UTF8}
        assert b'disk="/mnt/\\\\udcff"' in await get(app, "/metrics")

    with scripted_daemon(tmp_path / SOCKET, status=STATUS, metrics=METRICS, segments=segments):
        run(tmp_path, test)
