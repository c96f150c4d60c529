"""Basic authentication against a file of `user:bcrypt-hash` lines, as htpasswd -B writes them."""

import asyncio
import base64
import binascii
import hashlib
import hmac
import secrets
from pathlib import Path
from typing import Final

import bcrypt
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from commitlogfs.console.errors import UsageError

_MOST_KNOWN: Final = 100
_MOST_BYTES: Final = 72
"""bcrypt refuses longer passwords."""


class Users:
    """Who may read. A right password is remembered as a keyed digest, because bcrypt takes a tenth of a second."""

    def __init__(self, hashes: dict[str, bytes]) -> None:
        self._hashes = hashes
        self._unknown = bcrypt.hashpw(secrets.token_bytes(16), bcrypt.gensalt())
        """Checked for a user that does not exist, which must take as long."""
        self._key = secrets.token_bytes(32)
        self._known: set[bytes] = set()
        self._one_at_a_time = asyncio.Lock()
        """Guesses use one processor at most."""

    async def admits(self, authorization: bytes) -> bool:
        """`authorization`: value of the header."""
        digest = hmac.digest(self._key, authorization, hashlib.sha256)
        if digest in self._known:
            return True
        user, password = _credentials(authorization)
        if len(password) > _MOST_BYTES:
            return False
        expected = self._hashes.get(user)
        async with self._one_at_a_time:
            right = await asyncio.to_thread(bcrypt.checkpw, password, expected or self._unknown)
        if not right or expected is None:
            return False
        if len(self._known) < _MOST_KNOWN:
            self._known.add(digest)
        return True


def read_users(path: Path) -> Users:
    """Raises UsageError."""
    hashes: dict[str, bytes] = {}
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise UsageError(f"{path}: cannot be read ({reason}); write a line `user:bcrypt-hash` per user") from None
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        user, _, hashed = line.strip().partition(":")
        try:
            bcrypt.checkpw(b"", hashed.encode())
        except ValueError:
            raise UsageError(
                f"{path}: line {number} has no bcrypt hash; write `user:hash` (htpasswd -nB USER prints it)"
            ) from None
        hashes[user] = hashed.encode()
    if not hashes:
        raise UsageError(f"{path}: names no user; write a line `user:bcrypt-hash` per user")
    return Users(hashes)


def _credentials(authorization: bytes) -> tuple[str, bytes]:
    """User and password; empty without any."""
    scheme, _, encoded = authorization.partition(b" ")
    if scheme.lower() != b"basic":
        return "", b""
    try:
        user, _, password = base64.b64decode(encoded, validate=True).partition(b":")
        return user.decode(), password
    except (binascii.Error, UnicodeDecodeError):
        return "", b""


class BasicAuthentication:
    """Answers 401 to everybody but the users."""

    def __init__(self, app: ASGIApp, users: Users) -> None:
        self._app = app
        self._users = users

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            header = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
            if not await self._users.admits(header):
                headers = {"WWW-Authenticate": 'Basic realm="commitlogfs", charset="UTF-8"'}
                await PlainTextResponse("log in\n", 401, headers)(scope, receive, send)
                return
        await self._app(scope, receive, send)
