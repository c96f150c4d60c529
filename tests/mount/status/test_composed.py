"""How often a shared value is composed, by a clock that the tests move."""

import itertools
from collections.abc import Awaitable, Callable

import trio
from trio.testing import MockClock

from commitlogfs.mount.status.composed import Composed

TAKES_S = 0.25


class Composer:
    """Counts how often it was asked; a composition takes TAKES_S."""

    def __init__(self) -> None:
        self.began: list[float] = []
        self._numbers = itertools.count(1)

    async def __call__(self) -> int:
        self.began.append(trio.current_time())
        await trio.sleep(TAKES_S)
        return next(self._numbers)


def run(main: Callable[[Composer, Composed[int]], Awaitable[None]]) -> Composer:
    composer = Composer()

    async def with_value() -> None:
        await main(composer, Composed(composer, 1.0))

    trio.run(with_value, clock=MockClock(autojump_threshold=0))
    return composer


def test_a_hundred_readers_cost_one_composition_a_second() -> None:
    async def main(composer: Composer, shared: Composed[int]) -> None:
        async def reader(start: float) -> None:
            await trio.sleep(start)
            for _ in range(100):
                await shared.recent()
                await trio.sleep(0.1)

        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(reader, number / 1000)

    began = run(main).began
    assert len(began) >= 10
    assert min(later - former for former, later in itertools.pairwise(began)) >= 1.0


def test_readers_during_a_composition_share_its_value() -> None:
    values: list[int] = []

    async def main(composer: Composer, shared: Composed[int]) -> None:
        async def reader(start: float) -> None:
            await trio.sleep(start)
            values.append(await shared.recent())

        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(reader, number * TAKES_S / 10)

    assert len(run(main).began) == 1
    assert values == [1] * 10


def test_current_does_not_take_a_composition_under_way() -> None:
    values: list[int] = []

    async def main(composer: Composer, shared: Composed[int]) -> None:
        async def asker(start: float) -> None:
            await trio.sleep(start)
            values.append(await shared.current())

        async with trio.open_nursery() as nursery:
            for start in (0.0, TAKES_S / 2, TAKES_S / 2):
                nursery.start_soon(asker, start)

    assert len(run(main).began) == 2, "those that asked meanwhile share the next one"
    assert values == [1, 2, 2]


def test_a_reader_that_gives_up_leaves_the_value_to_others() -> None:
    async def main(composer: Composer, shared: Composed[int]) -> None:
        with trio.move_on_after(TAKES_S / 2):
            await shared.recent()
        assert await shared.recent() == 1

    assert len(run(main).began) == 2
