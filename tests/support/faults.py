"""Daemons that die at a chosen step, or are slow at every one: tests/support/fault_shim.c, preloaded into them."""

import mmap
import os
import shutil
import struct
import subprocess
from pathlib import Path

_SHIM = Path(__file__).with_name("fault_shim.c")
_PLAN = struct.Struct("iiii")
"""struct plan of the shim: pid, countdown, steps, delay_us."""


def why_not() -> str:
    return "" if shutil.which("cc") else "no C compiler"


class FaultPlan:
    """Faults for one process; put `variables` into its environment, or its keeper's."""

    def __init__(self, directory: Path) -> None:
        shim, plan = directory / "fault_shim.so", directory / "fault_plan"
        flags = ("-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror")
        subprocess.run(["cc", *flags, "-o", shim, _SHIM, "-ldl"], check=True)
        plan.write_bytes(bytes(_PLAN.size))
        fd = os.open(plan, os.O_RDWR)
        self._plan = mmap.mmap(fd, _PLAN.size)
        os.close(fd)
        self.variables = {"LD_PRELOAD": str(shim), "COMMITLOGFS_FAULT_PLAN": str(plan)}

    def die_at(self, pid: int, step: int) -> None:
        """Kill `pid` just before its `step`th step from now."""
        self._set(0, 0, 0, 0)
        self._set(pid, step, 0, 0)

    def slow_down(self, pid: int, delay_s: float, *, die_at: int = 0) -> None:
        """A pause before and after each of its steps; if `die_at`, it is killed before that one."""
        self._set(0, 0, 0, 0)
        self._set(pid, die_at, 0, round(delay_s * 1e6))

    def disarm(self) -> int:
        """Nothing happens any more; the steps that were taken, the deadly one included."""
        self._plan[:4] = bytes(4)
        steps = self.steps
        self._set(0, 0, 0, 0)
        return steps

    @property
    def steps(self) -> int:
        return int(_PLAN.unpack(self._plan[:])[2])

    def _set(self, pid: int, countdown: int, steps: int, delay_us: int) -> None:
        """The pid last: until it is there nobody is meant."""
        self._plan[4 : _PLAN.size] = _PLAN.pack(0, countdown, steps, delay_us)[4:]
        self._plan[:4] = struct.pack("i", pid)
