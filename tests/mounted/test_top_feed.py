"""Where `commitlogfs top` asks for the state of a mount."""

from pathlib import Path

import pytest
from support.pools import PoolMount
from support.waiting import eventually

from commitlogfs.mount.location.which_mount import Target
from commitlogfs.mount.top import feed as feed_module
from commitlogfs.mount.top.feed import Answer, Feed

pytestmark = [pytest.mark.mounted, pytest.mark.root]


def first_answer(feed: Feed) -> Answer:
    feed.request()
    eventually(lambda: feed.answer.count)
    return feed.answer


def test_the_status_socket_of_root_is_asked_first(
    shared: PoolMount, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COMMITLOGFS_RUNTIME_DIR", str(tmp_path))  # that of another user
    monkeypatch.setattr(feed_module, "OF_ROOT", shared.runtime)
    target = Target(shared.name, str(shared.mountpoint))
    asked = first_answer(Feed(target, shared.name))
    assert asked.document is not None
    assert asked.document["name"] == shared.name
    # The file in the mount is up to a second old; an answer of the daemon is composed for the question.
    before = shared.ask("status")["composed_at"]
    again = first_answer(Feed(target, shared.name)).document
    assert again is not None
    assert before <= again["composed_at"]


def test_a_mount_of_the_same_name_elsewhere_is_not_meant(
    shared: PoolMount, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COMMITLOGFS_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(feed_module, "OF_ROOT", shared.runtime)
    answer = first_answer(Feed(Target(shared.name, str(tmp_path)), shared.name))
    assert answer.document is None
    assert answer.error is not None
