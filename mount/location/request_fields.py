"""The fields of a request at the control socket, which root may also write by hand.

Each function raises FieldError for a value of a wrong type or out of range, so that a verb checks all its fields
before it changes anything.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, TypeVar

from commitlogfs.console.errors import UserError

E = TypeVar("E", bound=Enum)

MOST: Final = (1 << 63) - 1
"""The greatest number that the disks record."""
_SHOWN_CHARACTERS: Final = 40

Fields = Mapping[str, Any]


class FieldError(UserError):
    """A field of a request is missing or wrong; nothing has changed."""

    def __init__(self, key: str, expected: str, value: object) -> None:
        shown = "nothing" if value is None else ascii(value)
        if len(shown) > _SHOWN_CHARACTERS:
            shown = f"{shown[:_SHOWN_CHARACTERS]}..."
        super().__init__(f"{key}: {shown} is not {expected}; correct the request")


def flag(fields: Fields, key: str) -> bool:
    """False without the field."""
    value = fields.get(key, False)
    if not isinstance(value, bool):
        raise FieldError(key, "true or false", value)
    return value


def number(fields: Fields, key: str, default: int | None = None) -> int:
    """A whole number from 0 to MOST."""
    return _number(key, fields.get(key, default))


def numbers(fields: Fields, key: str) -> list[int] | None:
    """A list of whole numbers from 0 to MOST; None without the field."""
    values = fields.get(key)
    if values is None:
        return None
    if not isinstance(values, list):
        raise FieldError(key, "a list of numbers", values)
    return [_number(key, value) for value in values]


def text(fields: Fields, key: str, default: str | None = None) -> str:
    """A text that can be a path or a reason."""
    value = fields.get(key, default)
    if not isinstance(value, str) or "\0" in value or not _is_encodable(value):
        raise FieldError(key, "a text", value)
    return value


def disk(fields: Fields) -> str:
    """The number or path of a disk."""
    value = fields.get("disk")
    return str(_number("disk", value)) if isinstance(value, int) else text(fields, "disk")


def choice(fields: Fields, key: str, kind: type[E], default: E | None = None) -> E:
    """The member with this value."""
    value = fields.get(key, None if default is None else default.value)
    for member in kind:
        if member.value == value:
            return member
    raise FieldError(key, f"one of {', '.join(str(member.value) for member in kind)}", value)


def digest(fields: Fields, key: str, length: int) -> bytes:
    """`length` bytes in hexadecimal digits."""
    value = fields.get(key)
    try:
        found = bytes.fromhex(value) if isinstance(value, str) else b""
    except ValueError:
        found = b""
    if len(found) != length:
        raise FieldError(key, f"a text of {2 * length} hexadecimal digits", value)
    return found


def _number(key: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MOST:
        raise FieldError(key, f"a whole number from 0 to {MOST}", value)
    return value


def _is_encodable(value: str) -> bool:
    """False for a part of a surrogate pair, unless it stands for a byte of a path that is not UTF-8."""
    try:
        value.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return False
    return True
