"""The table [scrub]: what it accepts, and what it means."""

import pytest

from commitlogfs.mount.config.errors import ConfigError
from commitlogfs.mount.config.model import Config, parse_config
from commitlogfs.mount.config.scrub import format_window, parse_window


def parse(table: str) -> Config:
    return parse_config(f'mountpoint = "/m"\n{table}\n[[disks]]\npath = "/d"\n', "demo", "demo.toml")


def test_the_default_is_one_a_week_at_the_default_rate() -> None:
    rules = parse("").scrub
    assert (rules.every_s, rules.rate, rules.window) == (7 * 86400, 0, frozenset())


def test_every_key_has_an_effect() -> None:
    rules = parse('[scrub]\nevery = "1d"\nrate = "20MiB"\nwindow = "22-02"').scrub
    assert (rules.every_s, rules.rate, rules.window) == (86400, 20 << 20, {22, 23, 0, 1})


@pytest.mark.parametrize("text", ["", "0s"])
def test_it_can_be_off(text: str) -> None:
    assert parse(f'[scrub]\nevery = "{text}"').scrub.next_s(0.0) is None


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ('every = "30m"', "scrub.every: 30m is too short; write at least 1h"),
        ('every = "weekly"', "scrub.every: 'weekly' is not a duration"),
        ('window = "22"', "scrub.window: '22' is not a window; write its first and last hour"),
        ('window = "24-03"', "scrub.window: '24-03': no such hour"),
        ('window = "03-03"', "scrub.window: '03-03' has no hour"),
        ("window = 3", "scrub.window: 3 is not a window"),
        ('rate = "fast"', "scrub.rate: 'fast' is not a size"),
        ("hours = 1", "scrub.hours: unknown key; remove it; known here: every, rate, window"),
    ],
)
def test_wrong_values_have_a_remedy(table: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(f"[scrub]\n{table}")
    assert message in str(caught.value)


@pytest.mark.parametrize("text", ["22-06", "00-01", "09-17", "23-00", ""])
def test_a_window_is_shown_as_it_was_written(text: str) -> None:
    assert format_window(parse_window(text)) == text


def test_a_window_of_the_whole_day() -> None:
    assert len(parse_window("00-24")) == 24
    assert format_window(parse_window("00-24")) == ""
