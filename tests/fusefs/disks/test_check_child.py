"""The process that checks disks, as its daemon sees it."""

from pathlib import Path

import trio
from support.pooled import open_parts

from commitlogfs.fusefs.disks.check_child import CheckChild
from commitlogfs.store.disks.membership import DiskNumber

ONE, TWO = DiskNumber(1), DiskNumber(2)


def test_the_end_of_a_check_can_be_waited_for(workdir: Path) -> None:
    async def main(child: CheckChild) -> None:
        await child.finish(ONE)  # nobody has asked for one
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child.run)
            asked = await child.ask(ONE, [], may_write=True)
            assert asked is not None
            await child.finish(TWO)
            await child.finish(ONE)
            assert asked.has_ended.is_set()
            assert asked.answer is not None
            nursery.cancel_scope.cancel()

    with open_parts(workdir) as parts:
        trio.run(main, CheckChild(parts.commitlog.disks.values(), parts.commitlog.timing.checks))
