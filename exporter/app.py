"""The HTTP application: metrics, health, the API and the page. It only reads."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from commitlogfs.console.errors import UserError
from commitlogfs.console.version import VERSION
from commitlogfs.exporter import segment_map
from commitlogfs.exporter.authentication import BasicAuthentication, Users
from commitlogfs.exporter.exposition import expose
from commitlogfs.exporter.figures import Figures, MountFigures

PAGE: Final = Path(__file__).parent / "page"
MAP_AGE_S: Final = 5.0
"""A map at most that old is shown again: making one of 60,000 segments costs the daemon a tenth of a second."""
MOST_DECISIONS: Final = 1000
_COLUMNS: Final = 400
_DECISIONS: Final = 50
CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = (
    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-cache"),
)


def make_app(figures: Figures, users: Users | None = None) -> Starlette:
    """`users`: who may read; everybody without."""
    api = _Api(figures)
    middleware = [Middleware(_Headers)]
    if users is not None:
        middleware.append(Middleware(BasicAuthentication, users=users))
    return Starlette(
        routes=[
            Route("/", _index),
            Route("/metrics", api.metrics),
            Route("/healthz", _healthz),
            Route("/api/status", api.status),
            Route("/api/mounts/{name}/map", api.map),
            Route("/api/mounts/{name}/decisions", api.decisions),
            Mount("/static", StaticFiles(directory=PAGE)),
        ],
        middleware=middleware,
        exception_handlers={HTTPException: _refuse},
    )


class _Headers:
    """Adds the headers that keep a browser from doing anything but showing the page."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_HEADERS]
            await send(message)

        await self._app(scope, receive, send_with_headers)


async def _index(request: Request) -> Response:
    return FileResponse(PAGE / "index.html")


async def _healthz(request: Request) -> Response:
    """Whether this process answers; the mounts have `commitlogfs_up`."""
    return PlainTextResponse("ok\n")


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return PlainTextResponse(f"{error.detail}\n", error.status_code, error.headers)


class _Json(JSONResponse):
    def render(self, content: Any) -> bytes:
        """In ASCII: a path that is not UTF-8 has surrogate escapes, which only JSON's own escapes can carry."""
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


class _Api:
    def __init__(self, figures: Figures) -> None:
        self._figures, self._clock = figures, figures.clock
        self._maps: dict[str, tuple[float, dict[str, Any]]] = {}
        """When the segments were asked for (monotonic), and the answer, by mount."""

    async def metrics(self, request: Request) -> Response:
        mounts = await self._figures.recent()
        text, content_type = expose(mounts, self._clock.monotonic(), request.headers.get("accept", ""))
        return Response(text, headers={"content-type": content_type})

    async def status(self, request: Request) -> Response:
        mounts = await self._figures.recent()
        now_s = self._clock.monotonic()
        return _Json(
            {
                "composed_at": self._clock.wall(),
                "version": VERSION,
                "mounts": [_describe(mount, now_s) for mount in mounts],
            }
        )

    async def map(self, request: Request) -> Response:
        columns = _number(request, "columns", _COLUMNS, segment_map.MOST_COLUMNS)
        mount = await self._known(request)
        name = mount.found.name
        asked_s, answer = self._maps.get(name, (0.0, {}))
        if not answer or self._clock.monotonic() - asked_s > MAP_AGE_S:
            answer = await _answered(lambda: self._figures.ask(name, "segments"))
            now_s = self._clock.monotonic()
            self._maps = {kept: of for kept, of in self._maps.items() if now_s - of[0] < MAP_AGE_S}
            self._maps[name] = now_s, answer
        scrub = (mount.status or {}).get("scrub", {})  # a daemon of a former version has none
        damaged = [one["base_offset"] for one in scrub.get("damaged", ())]
        return _Json(await asyncio.to_thread(segment_map.draw, answer, columns, damaged))

    async def decisions(self, request: Request) -> Response:
        limit = _number(request, "limit", _DECISIONS, MOST_DECISIONS)
        name = (await self._known(request)).found.name
        return _Json(await _answered(lambda: self._figures.ask(name, "decisions", limit=limit)))

    async def _known(self, request: Request) -> MountFigures:
        name = request.path_params["name"]
        for mount in await self._figures.recent():
            if mount.found.name == name:
                return mount
        raise HTTPException(404, "no such mount")


def _describe(mount: MountFigures, now_s: float) -> dict[str, Any]:
    found = mount.found.mountpoint  # perhaps of a mount of the same name in another runtime directory
    return {
        "name": mount.found.name,
        "mountpoint": (mount.status or {}).get("mountpoint", found),
        "up": mount.is_up,
        "error": mount.error,
        "age_seconds": mount.age_s(now_s),
        "status": mount.status,
    }


async def _answered(ask: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
    """Raises HTTPException."""
    try:
        return await ask()
    except KeyError:
        raise HTTPException(404, "no such mount") from None
    except (UserError, OSError, ValueError) as error:
        raise HTTPException(503, str(error)) from None


def _number(request: Request, key: str, default: int, most: int) -> int:
    """A number from 1 to `most`. Raises HTTPException."""
    text = request.query_params.get(key, str(default))
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(most)) and 1 <= int(text) <= most):
        raise HTTPException(400, f"{key}: give a number from 1 to {most}")
    return int(text)
