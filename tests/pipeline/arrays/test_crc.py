import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from commitlogfs.pipeline.arrays.crc import crcs
from commitlogfs.store.record import body_crc


@given(st.lists(st.binary(max_size=70), max_size=5))
def test_each_range_has_the_crc_that_rocketmq_stores(bodies: list[bytes]) -> None:
    lengths = np.array([len(body) for body in bodies], np.int64)
    starts = np.cumsum(lengths) - lengths
    data = np.frombuffer(b"".join(bodies), np.uint8)
    assert crcs(data, starts, lengths).tolist() == [body_crc(body) for body in bodies]
