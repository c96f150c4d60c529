"""The fields of a request: right values come back as they are, all others get one line."""

from enum import Enum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlogfs.mount.location import request_fields
from commitlogfs.mount.location.request_fields import MOST, FieldError


class Way(Enum):
    FAST = "fast"
    SLOW = "slow"


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda values: st.lists(values) | st.dictionaries(st.text(), values),
    max_leaves=5,
)


@given(anything)
def test_a_value_is_right_or_explained_in_one_line(value: object) -> None:
    fields = {"key": value, "disk": value}
    for read in (
        lambda: request_fields.flag(fields, "key"),
        lambda: request_fields.number(fields, "key"),
        lambda: request_fields.text(fields, "key"),
        lambda: request_fields.disk(fields),
        lambda: request_fields.choice(fields, "key", Way),
        lambda: request_fields.digest(fields, "key", 16),
    ):
        try:
            found = read()
        except FieldError as error:
            refused = str(error)
        else:
            assert value is found or str(value) == found or isinstance(found, (Way, bytes))
            continue
        assert refused.isprintable()
        assert len(refused) < 200


@given(st.integers(0, MOST), st.lists(st.integers(0, MOST)), st.booleans(), st.binary(min_size=16, max_size=16))
def test_right_values(number: int, numbers: list[int], flag: bool, digest: bytes) -> None:
    fields = {"n": number, "l": numbers, "f": flag, "x": digest.hex(), "w": "slow", "disk": number}
    assert request_fields.number(fields, "n") == number
    assert request_fields.numbers(fields, "l") == numbers
    assert request_fields.flag(fields, "f") is flag
    assert request_fields.digest(fields, "x", 16) == digest
    assert request_fields.choice(fields, "w", Way) is Way.SLOW
    assert request_fields.disk(fields) == str(number)


def test_defaults() -> None:
    assert request_fields.number({}, "n", 5) == 5
    assert request_fields.numbers({}, "l") is None
    assert request_fields.flag({}, "f") is False
    assert request_fields.text({}, "t", "") == ""
    assert request_fields.choice({}, "w", Way, Way.FAST) is Way.FAST
    with pytest.raises(FieldError, match="n: nothing is not a whole number from 0 to"):
        request_fields.number({}, "n")


def test_a_path_that_is_not_utf8_is_a_text() -> None:
    assert request_fields.text({"t": "/data\udcff"}, "t") == "/data\udcff"
