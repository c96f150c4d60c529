"""Writes the man pages and the shell completion of both commands from their help texts.

Usage: python scripts/manual.py PREFIX
PREFIX is the virtual environment that commitlogfs is installed in, or any other directory.
"""

import re
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Final

import typer
from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

from commitlogfs.mount.cli import application
from commitlogfs.pipeline.cli import app as pipeline

COMMANDS: Final = {"commitlogfs": application(), "commitlogfs-pipeline": pipeline}
_STATUS: Final = "EXIT STATUS:"


def write(prefix: Path) -> list[Path]:
    """Write all files below `prefix` and return their paths."""
    pages = prefix / "share/man/man1"
    completions = prefix / "share/bash-completion/completions"
    texts = {pages / f"{page}.1": text for name in COMMANDS for page, text in manual(name).items()}
    texts |= {completions / name: completion(name) for name in COMMANDS}
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return list(texts)


def completion(name: str) -> str:
    """The bash script that asks the command for completions."""
    variable = f"_{name.replace('-', '_').upper()}_COMPLETE"
    return CliRunner().invoke(COMMANDS[name], prog_name=name, env={variable: "source_bash"}).stdout


def manual(name: str) -> dict[str, str]:
    """Page name -> roff source, for one command and all of its verbs."""
    app = COMMANDS[name]
    command = get_command(app)
    root = typer.Context(command, info_name=name, **command.context_settings)
    return {_page_name(context.command_path): _page(context, app.info.epilog or "") for context in _walk(root)}


def _walk(context: typer.Context) -> Iterator[typer.Context]:
    yield context
    for verb in _verbs(context):
        yield from _walk(verb)


def _verbs(context: typer.Context) -> list[typer.Context]:
    if not isinstance(context.command, TyperGroup):
        return []
    below = context.command.commands.items()
    return [typer.Context(verb, parent=context, info_name=name) for name, verb in below if not verb.hidden]


def _page_name(command_path: str) -> str:
    return command_path.replace(" ", "-")


def _page(context: typer.Context, shared_status: str) -> str:
    command, name = context.command, _text(_page_name(context.command_path))
    paragraphs = _paragraphs(command.help)
    first, _, rest = paragraphs[0].partition(". ")
    status = next((text for text in paragraphs if text.startswith(_STATUS)), shared_status)
    described = [text for text in (rest, *paragraphs[1:]) if text and not text.startswith(_STATUS)]
    lines = [
        f'.TH {name.upper()} 1 "" "commitlogfs {version("commitlogfs")}" "commitlogfs manual"',
        ".SH NAME",
        f"{name} \\- {_text(first.rstrip('.'))}",
        ".SH SYNOPSIS",
        f".B {_text(context.command_path)}",
        *(_text(piece) for piece in command.collect_usage_pieces(context)),
    ]
    if described:
        lines += [".SH DESCRIPTION", *(line for text in described for line in (".PP", _text(text)))]
    lines += _parameters(context) + _commands(context)
    lines += [".SH EXIT STATUS", _text(status.removeprefix(_STATUS).strip()), ".SH SEE ALSO"]
    if context.parent is not None:
        lines.append(_reference(_page_name(context.parent.command_path)))
    else:
        lines += [_reference(other) for other in COMMANDS if other != context.info_name]
    return "\n".join(lines) + "\n"


def _parameters(context: typer.Context) -> list[str]:
    found = [record for p in context.command.get_params(context) if (record := p.get_help_record(context))]
    lines = []
    for heading, is_option in (("ARGUMENTS", False), ("OPTIONS", True)):
        records = [record for record in found if record[0].startswith("-") is is_option]
        if records:
            lines.append(f".SH {heading}")
        for term, text in records:
            lines += [".TP", f".B {_text(term)}", _text(text)]
    return lines


def _commands(context: typer.Context) -> list[str]:
    lines = []
    for verb in _verbs(context):
        lines += [".TP", _reference(_page_name(verb.command_path)), _text(_paragraphs(verb.command.help)[0])]
    return [".SH COMMANDS", *lines] if lines else []


def _paragraphs(text: str | None) -> list[str]:
    return [" ".join(paragraph.split()) for paragraph in (text or "").split("\n\n")]


def _reference(page: str) -> str:
    return f".BR {_text(page)} (1)"


def _text(text: str) -> str:
    """Roff source for `text`: it contains no request, and hyphens can be copied into a shell."""
    text = text.replace("`", "").replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^(?=[.'])", r"\\&", text)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    for path in write(Path(sys.argv[1])):
        print(path)
