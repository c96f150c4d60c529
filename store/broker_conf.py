"""A RocketMQ broker.conf as the broker itself reads it, with a warning for every value that the broker ignores or
changes.

Rules, with their source in RocketMQ 5.5.0:

- The file is a Java properties file in ISO-8859-1 (BrokerStartup.SystemConfigFileHelper#loadConfig).
- The broker silently ignores a key without a setter, and an int that does not parse; a blank at the end of the
  line is enough for that. It trims texts but not booleans: everything except "true" is false
  (MixAll#properties2Object).
- Several commitlog paths are separated by commas, unless the system property
  rocketmq.broker.multiPathSplitter says otherwise; their items are not trimmed
  (MultiPathMappedFileQueue#getPaths). RIP-7's text uses ':', which is accepted, too.
"""

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

_REAL_LOOKALIKES: Final = frozenset({"storePathDLedgerCommitLog", "mappedFileSizeTimerLog"})
"""Keys of the broker whose spelling is close to a key that is read here. They are not misspellings."""
_SYSTEM_PROPERTY_PREFIX: Final = "rocketmq.broker."
CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")

_JAVA_BLANKS: Final = "".join(map(chr, range(0x21)))
"""Characters that Java's String#trim removes."""

# --- Java properties ---------------------------------------------------------------------------------


class PropertiesError(ValueError):
    """The text is one that java.util.Properties#load refuses; a broker does not start with it."""


_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_PROPERTY_BLANKS: Final = " \t\f"


def parse_properties(text: str) -> list[tuple[str, str]]:
    """Keys and values in file order, repeats included, as java.util.Properties#load reads them.

    Raises PropertiesError for a broken \\uXXXX.
    """
    return [_split_entry(line, number) for number, line in _logical_lines(text)]


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """Logical lines as (number of the first physical line, content): no comments or blank lines, continuations
    joined."""
    lines: list[tuple[int, str]] = []
    pending: tuple[int, str] | None = None
    for number, natural in enumerate(re.split(r"\r\n|\r|\n", text), start=1):
        line = natural.lstrip(_PROPERTY_BLANKS)
        first, before = pending or (number, "")
        if not before and line[:1] in ("", "#", "!"):  # a lone backslash does not begin an entry either
            pending = None
            continue
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            pending = (first, before + line[:-1])
            continue
        lines.append((first, before + line))
        pending = None
    if pending is not None:
        lines.append(pending)
    return lines


def _split_entry(line: str, number: int) -> tuple[str, str]:
    end = 0
    while end < len(line) and line[end] not in "=:" + _PROPERTY_BLANKS:
        end += 2 if line[end] == "\\" else 1
    value = line[end:].lstrip(_PROPERTY_BLANKS)
    if value[:1] in ("=", ":"):
        value = value[1:].lstrip(_PROPERTY_BLANKS)
    return _unescape(line[:end], number), _unescape(value, number)


def _unescape(text: str, number: int) -> str:
    def replace(match: re.Match[str]) -> str:
        escaped = match[1]
        if not escaped.startswith("u"):
            return _ESCAPES.get(escaped, escaped)
        if len(escaped) != 5:
            raise PropertiesError(
                f"line {number}: \\u is not followed by four hex digits, and a broker does not start with that; "
                "correct the line"
            )
        return chr(int(escaped[1:], 16))

    plain = re.sub(r"\\(u[0-9A-Fa-f]{4}|.|$)", replace, text, flags=re.DOTALL)
    # Java's chars are UTF-16 units: two escapes may make one character.
    return plain.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


# --- values ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class BrokerConf:
    """Values as the broker holds them, and a warning for each one that differs from what the file seems to say."""

    properties: dict[str, str]
    warnings: list[str] = field(default_factory=list)

    def warn(self, text: str) -> None:
        self.warnings.append(CONTROL.sub(" ", text))

    def warn_of_other_keys(self, keys: list[str], known: Iterable[str]) -> None:
        """Warn of repeated and misspelt `known` keys. `keys` are in file order, repeats included."""
        by_lower_case = {key.lower(): key for key in known}
        for key in dict.fromkeys(keys):
            if key == by_lower_case.get(key.lower()):
                if keys.count(key) > 1:
                    self.warn(f"{key} is given {keys.count(key)} times: the broker uses the last one")
            elif key.startswith(_SYSTEM_PROPERTY_PREFIX):
                self.warn(f"{key} is ignored by the broker in this file: it is a Java system property (-D)")
            elif key not in _REAL_LOOKALIKES:
                close = difflib.get_close_matches(key.lower(), by_lower_case, n=1, cutoff=0.8)
                if close:
                    meant = by_lower_case[close[0]]
                    effect = "its default is used" if meant not in self.properties else f"{meant} is given too"
                    self.warn(f"{key} is ignored by the broker: did you mean {meant}? ({effect})")
        if self.properties.get("enableDLegerCommitLog", "").lower() == "true":
            self.warn("enableDLegerCommitLog = true: DLedger has its own log, which commitlogfs does not support")

    def text(self, key: str) -> str | None:
        """The trimmed text of `key`, or None if it is not set."""
        value = self.properties.get(key)
        if value is None:
            return None
        if not value.isascii():
            self.warn(
                f"{key} is not plain ASCII: the broker reads the file as ISO-8859-1, so check the name on disk"
            )
        trimmed = value.strip(_JAVA_BLANKS)
        if not trimmed:
            self.warn(f"{key} is empty: it counts as not set")
        return trimmed or None

    def raw_text(self, key: str, default: str) -> str:
        """The trimmed text of `key`. An empty text is returned as it is, not replaced by `default`."""
        return self.properties.get(key, default).strip(_JAVA_BLANKS)

    def boolean(self, key: str, default: bool) -> bool:
        value = self.properties.get(key)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            self.warn(f"{key} = {value!r}: the broker reads it as false, as it does everything except true")
        return value.lower() == "true"

    def integer(self, key: str, default: int) -> int | None:
        """The value of `key` as a Java int, or None if it is not set or the broker ignores it."""
        value = self.properties.get(key)
        if value is None:
            return None
        if re.fullmatch(r"[+-]?[0-9]+", value) and -(2**31) <= int(value) < 2**31:
            return int(value)
        cause = "a blank at its end" if re.fullmatch(r"[+-]?[0-9]+\s+", value) else "it is not a Java int"
        self.warn(f"{key} = {value!r} is ignored by the broker ({cause}): its default {default} is used")
        return None

    def paths(self, key: str, value: str | None) -> dict[str, str]:
        """The paths in the list `value`, split as the broker does, or at RIP-7's ':'; {} if it is not set.

        Maps each path, without a slash at its end, to the broker's spelling of it.
        """
        if value is None:
            return {}
        separator = ","
        if "," not in value and all(item.startswith("/") for item in value.split(":")):
            separator = ":"
        if separator == ":" and ":" in value:
            self.warn(
                f"{key} is split at ':', as in RIP-7; an unmodified broker splits at ',' only "
                "(system property rocketmq.broker.multiPathSplitter)"
            )
        return self._clean_items(key, value.split(separator))

    def _clean_items(self, key: str, items: list[str]) -> dict[str, str]:
        cleaned: dict[str, str] = {}
        for item in items:
            name = item.strip(_JAVA_BLANKS)
            if not name:
                self.warn(f"{key} has an empty item: it is left out")
                continue
            if name != item:
                self.warn(
                    f"{key}: the broker does not trim the item {item!r} and uses a directory of exactly that name; "
                    f"the new configuration gets {name}; check which directory holds the segments"
                )
            path = name.rstrip("/") or "/"
            if path in cleaned:
                self.warn(f"{key} names {path} twice: once is enough")
            else:
                cleaned[path] = item
        return cleaned
