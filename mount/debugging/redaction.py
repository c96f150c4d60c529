"""Removal of credentials in URIs and of topics of messages, from every piece."""

import json
import re
from typing import Any, Final

LEFT_OUT: Final = "(removed)"

_URI: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)([^\s\"']+)")
_MESSAGES: Final = re.compile(r"(; messages: )[^\n]*")
"""The finding `damaged-segment` names the messages by topic."""


def redact(text: str) -> str:
    """A text without credentials and topics."""
    return _MESSAGES.sub(rf"\1{LEFT_OUT}", _URI.sub(_redacted_uri, text))


def _redacted_uri(found: re.Match[str]) -> str:
    """Without what may be a password, which ends at the last `@` as it may hold one itself, and without the query,
    which in a signed URI holds the signature."""
    scheme, rest = found.groups()
    user, at, place = rest.rpartition("@")
    path, question, query = place.partition("?")
    return f"{scheme}{LEFT_OUT if user else ''}{at}{path}{question}{LEFT_OUT if query else ''}"


def as_json(document: Any) -> bytes:
    """A document as text; every string in it is redacted, and topics are left out."""
    return json.dumps(_redacted(document), indent=2).encode() + b"\n"


def _redacted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: LEFT_OUT if key == "topic" else _redacted(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_redacted(item) for item in value]
    return redact(value) if isinstance(value, str) else value
