"""Checks messages, docstrings, comments and documents for home-made English, and proposes the standard word.

Usage: python scripts/check_words.py [PATH...]
Each finding is a line `path:line: phrase: write ...`; the exit status is 1 if there are any. Code in backticks is
not checked. Of tests only docstrings and comments are checked, because their strings quote other packages. Without
PATH, the files below CHECKED are checked.
"""

import io
import re
import sys
import tokenize
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
_TESTS: Final = ROOT / "tests"
CHECKED: Final = (
    *(
        "bench",
        "changelog.d",
        "console",
        "docs",
        "fusefs",
        "mount",
        "pipeline",
        "pyspark_commitlog",
        "scripts",
        "store",
    ),
    *("systemd", "tests"),
    *("CHANGELOG.md", "CONTRIBUTING.md", "Makefile", "README.md", "SECURITY.md", "pyproject.toml"),
)
"""Files and directories with text that people read."""

_SPACE: Final = r"\x20"
"""Only a space: all other spaces below also match the end of a line, but a look-behind has a fixed width."""
_NOUN: Final = r"segment|disk|director\w+|file|record|mount\w*|number|multiple"
_WORDS: Final = {
    r"told|tells? of|telling of": "reported, reports, passed on",
    r"(?:go|goes|going|went|gone) on(?: with|\b(?=[.,;:)]))": "continues, takes over",
    r"behind (?:the|its|an?|that|this) (?:end|offset|position|record|message|segment|last)": "after, past",
    rf"(?<!there{_SPACE})(?<!There{_SPACE})(?:is|are|was|were) no (?:{_NOUN})": "is not a ...",
    r"(?:un)?wanted|demand(?:s|ed|ing)": "expected, required",
    r"barren|in vain": "not reclaiming",
    r"trials?": "probe",
    r"inuse": "lease, lease probe",
    r"beneath": "safe_open, openat2; below",
    r"(?:held|holds?|holding|kept|keeps?) back": "in backoff; kept",
    r"doubtful": "uncertain (outcome unknown)",
    r"(?:forgets?|forgetting|forgot(?:ten)?) (?:an?|the|its|their|old|this|all)?\s*names?": "invalidates a dentry",
    r"(?:step|steps|stepped|stepping) back|farewells?": "hands over, shuts down, detaches",
    r"(?:see|sees|saw|seen|seeing) off": "detaches",
    r"mortal": "takeover not available",
    r"(?:believe|believes|believed|believing) (?:the|a|its) clock": "resets the clock baseline",
    r"(?:make|makes|made|making) room": "reclaims space",
    r"folders?": "directory",
    r"an? look (?:at|into|for)|(?:look|looks|looked|looking) (?:at|into)": "check, read",
    r"whoever|who has|who only|who is to": "name the actor: the process, the daemon, the broker",
}
"""Phrase -> what to write instead. See docs/terminology.md for the terms."""

_PHRASE: Final = {
    re.compile(rf"(?<![\w/-])(?:{words})(?![\w/-])".replace(" ", r"\s+")): proposal
    for words, proposal in _WORDS.items()
}
_BARE: Final = re.compile(r"(?:Of|Who|Whoever|What|That)\s")
"""At the start of a docstring: not a noun phrase, and not a sentence with an actor."""
_BINARY: Final = {".png", ".pyc", ".so", ".svg"}
_CODE_SPAN: Final = re.compile(r"`[^`\n]*`")
_FENCE: Final = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_REPLACEMENT_FIELD: Final = re.compile(r"\{[^{}]*\}")
_C_TEXT: Final = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:[^"\\\n]|\\.)*"', re.DOTALL)
_FSTRING_MIDDLE: Final = getattr(tokenize, "FSTRING_MIDDLE", None)
"""Text between the fields of an f-string, from Python 3.12 on. Earlier, the f-string is one STRING."""
_HASH_COMMENT: Final = re.compile(r"(?:^|(?<=\s))#.*", re.MULTILINE)


class Kind(Enum):
    """Where a text is."""

    DOCSTRING = "docstring"
    STRING = "string"
    COMMENT = "comment"
    DOCUMENT = "document"


class Text(NamedTuple):
    """Text that a person reads, with the line where it begins."""

    line: int
    content: str
    kind: Kind


def findings(path: Path) -> list[tuple[int, str, str]]:
    """Line, phrase and proposal of each phrase in the file that should be replaced, by line."""
    found = []
    for text in _texts(path):
        content = _CODE_SPAN.sub(_blank, text.content)
        matches = [(match, proposal) for phrase, proposal in _PHRASE.items() for match in phrase.finditer(content)]
        if text.kind is Kind.DOCSTRING and (bare := _BARE.match(content)):
            matches.append((bare, "a noun phrase or a sentence with an actor"))
        for match, proposal in sorted(matches, key=lambda one: one[0].start()):
            line = text.line + content.count("\n", 0, match.start())
            found.append((line, " ".join(match[0].split()), proposal))
    return sorted(found, key=lambda one: one[0])


def _texts(path: Path) -> Iterator[Text]:
    source = path.read_text(errors="replace")
    if path.suffix in (".py", ".pyi"):
        is_test = _TESTS in path.resolve().parents
        yield from (text for text in _python_texts(source) if not is_test or text.kind is not Kind.STRING)
    elif path.suffix == ".md":
        yield Text(1, _FENCE.sub(_blank, source), Kind.DOCUMENT)
    elif path.suffix in (".c", ".java"):
        yield from (Text(_line_of(source, match), match[0], Kind.COMMENT) for match in _C_TEXT.finditer(source))
    else:
        comments = _HASH_COMMENT.finditer(source)
        yield from (Text(_line_of(source, match), match[0], Kind.COMMENT) for match in comments)


def _python_texts(source: str) -> Iterator[Text]:
    """Comments, with those of consecutive lines as one text, and strings with a space."""
    comments: list[tokenize.TokenInfo] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if comments and token.start[0] > comments[-1].start[0] + 1:
                yield _joined(comments)
                comments = []
            comments.append(token)
        elif token.type == tokenize.STRING and " " in token.string:
            body = token.string.lstrip("rRbBfFuU")
            quote = body[:3] if body.startswith(('"""', "'''")) else body[:1]
            content = body[len(quote) : -len(quote)]
            if "f" in token.string[: -len(body)].lower():
                content = _REPLACEMENT_FIELD.sub(_blank, content)
            is_docstring = quote == '"""' and token.line.lstrip().startswith('"""')
            yield Text(token.start[0], content, Kind.DOCSTRING if is_docstring else Kind.STRING)
        elif token.type == _FSTRING_MIDDLE:
            yield Text(token.start[0], token.string, Kind.STRING)
    if comments:
        yield _joined(comments)


def _joined(comments: list[tokenize.TokenInfo]) -> Text:
    lines = "\n".join(comment.string.lstrip("# ") for comment in comments)
    return Text(comments[0].start[0], lines, Kind.COMMENT)


def _blank(match: re.Match[str]) -> str:
    """As many lines, without the text; a character that no phrase contains keeps the words around it apart."""
    return "\0" + "\n" * match[0].count("\n")


def _line_of(source: str, match: re.Match[str]) -> int:
    return source.count("\n", 0, match.start()) + 1


def files(places: list[Path]) -> Iterator[Path]:
    """The text files below `places`, except this one, which contains every phrase."""
    for place in places:
        for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
            is_text = path.is_file() and path.suffix not in _BINARY and "__pycache__" not in path.parts
            if is_text and path.resolve() != Path(__file__).resolve():
                yield path


def main(arguments: list[str]) -> int:
    """Print the findings; 1 if there are any."""
    places = [Path(argument) for argument in arguments] or [ROOT / name for name in CHECKED]
    found = False
    for path in files(places):
        shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
        for line, phrase, proposal in findings(path):
            found = True
            print(f"{shown}:{line}: {phrase}: write {proposal}")
    return int(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
