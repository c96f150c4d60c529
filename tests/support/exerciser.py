"""Random operations on segments of a mount, one after the other, beside an oracle: in the manner of fsx.

    python -m support.exerciser MOUNTPOINT --disk DIR ... --seed N --operations N [--plain] [--replace-every N]

With --replace-every it prints `replace` at random steps of its own and continues at once; its parent then
replaces the daemon and answers with an empty line. The next `replace` waits for that answer, so the same seed means
the same operations, with the daemon replaced at nearly the same ones. If something differs it ends with 1, and the
story.

A separate process, with a second one as another opener: the process that replaces the daemon must not have files of
the mount open.
"""

import argparse
import faulthandler
import random
import sys
import traceback
from pathlib import Path

from support.exercise import Exercise
from support.openers import LocalOpener, Opener, child_opener


class Replacements:
    """Asks for another daemon at random steps, one in each stretch of `every`."""

    def __init__(self, seed: int, every: int) -> None:
        self._random = random.Random(seed + 2)  # noqa: S311
        self._every = every
        self._next = self._random.randrange(1, every) if every else 0
        self._stretch = 1
        self._awaited = False
        self.count = 0

    def before(self, step: int) -> None:
        if step != self._next:
            return
        self._next = self._stretch * self._every + self._random.randrange(self._every)
        self._stretch += 1
        self.await_last()
        print("replace", flush=True)
        self._awaited = True
        self.count += 1

    def await_last(self) -> None:
        if self._awaited and not sys.stdin.readline():
            sys.exit("the parent, which replaces daemons, has ended")
        self._awaited = False


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("mountpoint", type=Path)
    parser.add_argument("--disk", type=Path, action="append", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--operations", type=int, required=True)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--replace-every", type=int, default=0)
    chosen = parser.parse_args()
    faulthandler.enable()
    replacements = Replacements(chosen.seed, chosen.replace_every)
    with child_opener() as other:
        own = LocalOpener()
        openers: dict[str, Opener] = {"own": own, "other": other}
        exercise = Exercise(chosen.mountpoint, chosen.disk, openers, chosen.seed, chosen.plain)
        try:
            for step in range(1, chosen.operations + 1):
                replacements.before(step)
                exercise.run_one()
            replacements.await_last()
            exercise.finish()
        except Exception:
            print(f"step {exercise.oracle.step} of seed {chosen.seed}:")
            traceback.print_exc(file=sys.stdout)
            print(f"the steps before:\n{exercise.oracle.story()}", flush=True)
            return 1
        finally:
            own.end()
    print(f"{chosen.operations} operations, {replacements.count} replacements: no difference")
    return 0


if __name__ == "__main__":
    sys.exit(main())
