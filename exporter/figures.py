"""The latest figures of the mounts. No daemon that hangs delays a reader by more than PATIENCE_S."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from commitlogfs.console.errors import UnreachableError, UserError
from commitlogfs.exporter.mounts import FoundMount
from commitlogfs.mount.location import control_socket
from commitlogfs.store.clock import SYSTEM_CLOCK, Clock

MAX_AGE_S: Final = 1.0
"""Older figures are fetched anew when somebody reads them: the next reader gets the new ones."""
OLD_AGE_S: Final = 8.0
"""A reader waits for newer figures than these, for PATIENCE_S."""
PATIENCE_S: Final = 0.03
ANSWER_TIMEOUT_S: Final = 5.0
KEPT_FRESH_S: Final = 150.0
"""After a reader has asked, the figures are fetched every INTERVAL_S for that long, so that the next reader gets
recent ones without waiting. It is longer than scrapes are apart."""
INTERVAL_S: Final = 5.0
"""Mounts are looked for as often."""
MOST_QUESTIONS: Final = 4
"""Different questions of readers that wait for one daemon; more are refused, as one that hangs answers none."""

Discover = Callable[[], list[FoundMount]]


@dataclass(slots=True)
class MountFigures:
    """What is known of one mount."""

    found: FoundMount
    status: dict[str, Any] | None = None
    families: list[Metric] = field(default_factory=list)
    fetched_s: float | None = None
    """Monotonic time at which the latest answer was asked for; None before the first one."""
    error: str | None = "not asked yet"
    """Why the latest question has no answer; None if it has one."""

    @property
    def is_up(self) -> bool:
        return self.error is None

    def age_s(self, now_s: float) -> float | None:
        return None if self.fetched_s is None else max(0.0, now_s - self.fetched_s)


class _Source:
    """Asks one daemon, in threads of its own: one that hangs holds no other one's. The figures have a thread of
    their own, so that no question of a reader delays them."""

    def __init__(self, figures: MountFigures, clock: Clock) -> None:
        self.figures = figures
        self._clock = clock
        self._figures_thread = ThreadPoolExecutor(1, f"figures-{figures.found.name}")
        self._questions_thread = ThreadPoolExecutor(1, f"questions-{figures.found.name}")
        self._asked_s = 0.0
        self._fetching: asyncio.Task[None] | None = None
        self._questions: dict[tuple[object, ...], asyncio.Future[dict[str, Any]]] = {}
        """Those that wait for an answer. Readers who ask the same get the same one."""

    def begin_if_due(self) -> None:
        """Fetch, unless the latest answer is recent, or is awaited."""
        is_fetching = self._fetching is not None and not self._fetching.done()
        if not is_fetching and self._clock.monotonic() - self._asked_s > MAX_AGE_S:
            self._asked_s = self._clock.monotonic()
            self._fetching = asyncio.create_task(self._fetch(self._asked_s))

    def awaited(self, max_age_s: float) -> list[asyncio.Task[None]]:
        """The fetch under way, if the latest figures are older than that."""
        age_s = self.figures.age_s(self._clock.monotonic())
        is_recent = age_s is not None and age_s <= max_age_s
        return [] if is_recent or self._fetching is None or self._fetching.done() else [self._fetching]

    async def ask(self, verb: str, **arguments: object) -> dict[str, Any]:
        """Raises UserError, OSError, ValueError."""
        question = (verb, *sorted(arguments.items()))
        asked = self._questions.get(question)
        if asked is None:
            if len(self._questions) >= MOST_QUESTIONS:
                raise UnreachableError(
                    f"{self.figures.found.name}: too many questions wait for its daemon; ask later"
                )
            work = partial(_ask, self.figures.found.sockets, verb, **arguments)
            asked = asyncio.get_running_loop().run_in_executor(self._questions_thread, work)
            self._questions[question] = asked
            asked.add_done_callback(lambda done: self._forget(question, done))
        return await asyncio.shield(asked)

    def _forget(self, question: tuple[object, ...], done: asyncio.Future[dict[str, Any]]) -> None:
        del self._questions[question]
        if not done.cancelled():
            done.exception()  # taken, as its reader may have gone

    async def _fetch(self, asked_s: float) -> None:
        try:
            work = partial(_fetch, self.figures.found.sockets)
            answered = await asyncio.get_running_loop().run_in_executor(self._figures_thread, work)
        except (UserError, OSError, ValueError) as failure:
            self.figures.error = str(failure)
        except Exception as failure:  # of another version's answer; the mount is not up then
            self.figures.error = f"its answer is not understood ({type(failure).__name__}: {failure})"
        else:
            self.figures.status, self.figures.families = answered
            self.figures.fetched_s, self.figures.error = asked_s, None

    def close(self) -> None:
        for thread in (self._figures_thread, self._questions_thread):
            thread.shutdown(wait=False, cancel_futures=True)


def _fetch(sockets: Iterable[Path]) -> tuple[dict[str, Any], list[Metric]]:
    """Blocks for ANSWER_TIMEOUT_S at most. Raises UserError, OSError, ValueError; others if the answer is none that
    a daemon gives."""
    status = _ask(sockets, "status")
    return status, list(text_string_to_metric_families(_ask(sockets, "metrics")["text"]))


def _ask(sockets: Iterable[Path], verb: str, **arguments: object) -> dict[str, Any]:
    """As `_fetch`."""
    paths = [path for path in sockets if path.exists()]
    if not paths:
        raise UnreachableError("no daemon serves it")
    path = next(filter(control_socket.is_listening, paths), paths[0])
    return control_socket.ask(path, verb, ANSWER_TIMEOUT_S / 2, **arguments)


class Figures:
    """All mounts of the machine. `async with` keeps them fresh while readers come."""

    def __init__(self, discover: Discover, clock: Clock = SYSTEM_CLOCK) -> None:
        self._discover = discover
        self.clock = clock
        """Ages are differences of its times, so code that shows an age must read the same clock."""
        self._sources: dict[str, _Source] = {}
        self._read_s = -KEPT_FRESH_S
        self._keeping: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Figures":
        await self._find()
        self._keeping = asyncio.create_task(self._keep())
        return self

    async def __aexit__(self, *exception: object) -> None:
        assert self._keeping is not None
        self._keeping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._keeping
        for source in self._sources.values():
            source.close()

    async def recent(self, patience_s: float = PATIENCE_S, max_age_s: float = OLD_AGE_S) -> list[MountFigures]:
        """The figures of all mounts by name, at most `max_age_s` old where their daemons answer in time."""
        self._read_s = self.clock.monotonic()
        sources = list(self._sources.values())
        for source in sources:
            source.begin_if_due()
        fetching = [task for source in sources for task in source.awaited(max_age_s)]
        if fetching:
            await asyncio.wait(fetching, timeout=patience_s)
        return [source.figures for source in sources]

    async def ask(self, name: str, verb: str, **arguments: object) -> dict[str, Any]:
        """The answer of one daemon. Raises KeyError for an unknown mount, UserError, OSError, ValueError."""
        source = self._sources[name]
        return await source.ask(verb, **arguments)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            try:
                await self._find()
            except Exception:  # those that were found before stay
                logging.exception("cannot look for mounts")
            if self.clock.monotonic() - self._read_s < KEPT_FRESH_S:
                for source in self._sources.values():
                    source.begin_if_due()

    async def _find(self) -> None:
        found = {one.name: one for one in await asyncio.to_thread(self._discover)}
        for name in self._sources.keys() - found.keys():
            self._sources.pop(name).close()
        for name, one in found.items():
            if name in self._sources:
                self._sources[name].figures.found = one
            else:
                self._sources[name] = _Source(MountFigures(one), self.clock)
        self._sources = dict(sorted(self._sources.items()))
