"""Texts of a bug report: neither passwords nor signatures nor topics are left, and the rest is."""

import json

import pytest

from commitlogfs.mount.debugging.redaction import as_json, redact


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("sftp://anna:geheim@host/dir", "sftp://(removed)@host/dir"),
        ("sftp://anna:ge@heim@host/dir", "sftp://(removed)@host/dir"),
        ("sftp://anna:ge/heim@host/dir", "sftp://(removed)@host/dir"),
        ("sftp://anna:ge?heim@host/dir?sig=abc", "sftp://(removed)@host/dir?(removed)"),
        ("s3://bucket/key?signature=abc&x=y z", "s3://bucket/key?(removed) z"),
        ("s3://bucket/key and sftp://a:b@c", "s3://bucket/key and sftp://(removed)@c"),
        ('from = "sftp://a:b@c/d"', 'from = "sftp://(removed)@c/d"'),
        ("https://host/plain/path", "https://host/plain/path"),
        ("mail anna@host", "mail anna@host"),
        ("https://", "https://"),
        ("1 segment; messages: TopicA 0 5\nnext", "1 segment; messages: (removed)\nnext"),
    ],
)
def test_what_is_left_of_a_text(text: str, redacted: str) -> None:
    assert redact(text) == redacted
    assert redact(redacted) == redacted


def test_every_text_of_a_document() -> None:
    document = {"topic": "T", "deep": [{"uri": "s3://a:b@c"}, 1, None], "messages": 3}
    assert json.loads(as_json(document)) == {
        "topic": "(removed)",
        "deep": [{"uri": "s3://(removed)@c"}, 1, None],
        "messages": 3,
    }
