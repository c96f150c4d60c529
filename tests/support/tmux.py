"""A shell in a terminal of tmux: what it shows, what is typed, its size."""

import os
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from support.waiting import PATIENCE_S, eventually

PROMPT = "prompt>"
_SHELL = ("bash", "--norc", "--noprofile")


class Tmux:
    """One terminal, of a server of its own."""

    def __init__(self, directory: Path, width: int, height: int, variables: Mapping[str, str]) -> None:
        self._socket = directory / "tmux"
        inherited = {key: value for key, value in os.environ.items() if key not in ("TMUX", "NO_COLOR", "COLUMNS")}
        environment = {**inherited, "LC_ALL": "C.UTF-8", "TERM": "xterm-256color", **variables}
        shell = shlex.join(["env", f"PS1={PROMPT} ", *_SHELL])
        subprocess.run(
            [
                *("tmux", "-u", "-S", str(self._socket), "-f", "/dev/null"),
                *("new-session", "-d", "-x", str(width), "-y", str(height), shell),
            ],
            check=True,
            env=environment,
        )
        self.eventually_shows(PROMPT)

    def _run(self, *arguments: str) -> str:
        done = subprocess.run(
            ["tmux", "-u", "-S", str(self._socket), *arguments], capture_output=True, text=True, check=True
        )
        return done.stdout

    def run(self, *command: object) -> None:
        """Type a command. When it has ended, its exit status is shown as `status=N`."""
        self._run("send-keys", "-l", f"{shlex.join(map(str, command))}; echo status=$?")
        self.press("Enter")

    def press(self, *keys: str) -> None:
        """Names of keys as tmux knows them: "q", "Enter", "C-z"."""
        self._run("send-keys", *keys)

    def lines(self) -> list[str]:
        """The lines of the screen, without spaces at their ends."""
        return self._run("capture-pane", "-p").split("\n")[:-1]

    def wrapped_count(self) -> int:
        """Number of lines that continue the one above, because it was too long."""
        return len(self.lines()) - len(self._run("capture-pane", "-p", "-J").split("\n")[:-1])

    def text(self) -> str:
        return "\n".join(self.lines())

    def resize(self, width: int, height: int) -> None:
        self._run("resize-window", "-x", str(width), "-y", str(height))

    def shows_cursor(self) -> bool:
        return self._run("display", "-p", "#{cursor_flag}").strip() == "1"

    def is_alternate(self) -> bool:
        """Whether a program uses the alternate screen."""
        return self._run("display", "-p", "#{alternate_on}").strip() == "1"

    def shell_pid(self) -> int:
        return int(self._run("display", "-p", "#{pane_pid}"))

    def eventually_shows(self, text: str, timeout_s: float = PATIENCE_S) -> str:
        """The screen that has this text."""
        return eventually(lambda: self._with(text), timeout_s, self.text)

    def _with(self, text: str) -> str:
        shown = self.text()
        return shown if text in shown else ""

    def close(self) -> None:
        subprocess.run(["tmux", "-S", str(self._socket), "kill-server"], capture_output=True, check=False)


@contextmanager
def tmux(directory: Path, width: int, height: int, variables: Mapping[str, str]) -> Iterator[Tmux]:
    terminal = Tmux(directory, width, height, variables)
    try:
        yield terminal
    finally:
        terminal.close()
