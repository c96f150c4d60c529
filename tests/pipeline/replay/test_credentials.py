"""The file with the access key: private, complete, and never shown."""

from pathlib import Path

import pytest

from commitlogfs.console.errors import RefusedError, UsageError
from commitlogfs.pipeline.replay.credentials import Credentials

GOOD = 'access_key = "user"\nsecret_key = "hidden"\n'


def written(path: Path, text: str = GOOD, mode: int = 0o600) -> Path:
    path.touch(mode)
    path.write_text(text)
    path.chmod(mode)
    return path


def test_both_keys(tmp_path: Path) -> None:
    found = Credentials.read(written(tmp_path / "keys"))
    assert (found.access_key, found.secret_key) == ("user", "hidden")
    assert "hidden" not in repr(found)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602])
def test_a_file_of_other_users_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(RefusedError, match=rf"keys: other users have access \(mode {mode:04o}\); run chmod 600"):
        Credentials.read(written(tmp_path / "keys", mode=mode))


@pytest.mark.parametrize(
    "text",
    [
        "",
        'access_key = "user"',
        'access_key = "user"\nsecret_key = ""',
        'access_key = "user"\nsecret_key = 12345678',
        'access_key = "user"\nsecret_key = hidden',
        GOOD + 'more = "x"',
        GOOD + "\udc80",
    ],
    ids=["empty", "one", "no-value", "number", "no-quotes", "more", "no-utf-8"],
)
def test_another_content_is_an_error_that_shows_nothing(tmp_path: Path, text: str) -> None:
    path = written(tmp_path / "keys", "")
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UsageError, match=r"keys: must have two lines") as raised:
        Credentials.read(path)
    assert "hidden" not in str(raised.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere: cannot be read"):
        Credentials.read(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="Is a directory"):
        Credentials.read(tmp_path)
