"""A real systemd, booted as PID 1 of namespaces of its own, on an overlay of this machine's root.

Its services see the host's files (the virtual environment, the disks made by a test under `shared`), and nothing it
does to /etc, /run or /var stays. Units that would reach the host (udev, sysctl, timesyncd ...) are masked.
"""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.waiting import PATIENCE_S, eventually

_SYSTEMD = Path("/lib/systemd/systemd")
_MASKED = (
    *(f"systemd-{name}.service" for name in ("sysctl", "udevd", "random-seed", "timesyncd", "logind", "pstore")),
    *(f"systemd-{name}.service" for name in ("remount-fs", "binfmt", "modules-load", "update-utmp", "resolved")),
    *("sys-kernel-debug.mount", "sys-kernel-tracing.mount", "sys-kernel-config.mount", "dev-hugepages.mount"),
    *("dev-mqueue.mount", "sys-fs-fuse-connections.mount", "systemd-networkd.service", "getty.target"),
)
_TARGET = "[Unit]\nRequires=basic.target\nAfter=basic.target\nAllowIsolate=yes\n"
_BOOT = r"""
R=$W/root
mount -t overlay overlay -o lowerdir=/,upperdir=$W/upper,workdir=$W/work $R
mount --rbind /dev $R/dev
mount -t tmpfs -o mode=755 tmpfs $R/run
mount -t tmpfs -o mode=1777 tmpfs $R/tmp
mount -t sysfs -o ro sysfs $R/sys
mkdir -p $R/shared
mount --rbind $W/shared $R/shared
mkdir -p $R$W/shared
mount --rbind $W/shared $R$W/shared
cp -a $W/etc/. $R/etc/
for path in $PYTHONS; do mkdir -p $R$path; mount --rbind $path $R$path; done
cp -a $W/bin/. $R/usr/local/bin/
install -D -m 755 $SOURCE/systemd/commitlogfs-unit $R/usr/local/libexec/commitlogfs-unit
echo $$ > $CG/cgroup.procs
exec unshare --mount --pid --cgroup --ipc --uts --fork --kill-child --propagation private bash -euc '
R=$W/root
mount -t proc proc $R/proc
mount --bind -o ro $R/proc/sys $R/proc/sys
mount -t cgroup2 cgroup2 $R/sys/fs/cgroup
cd $R
mkdir -p oldroot
pivot_root . oldroot
umount -l /oldroot
cd /
export container=test PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
exec env -i container=$container PATH=$PATH /lib/systemd/systemd --system --unit=test.target --show-status=0
'
"""


def why_not() -> str:
    """The reason why systemd cannot be booted here; empty if none is known."""
    if os.geteuid() != 0:
        return "needs root"
    if not _SYSTEMD.exists():
        return "systemd is not installed"
    return "" if _cgroup2() is not None else "no cgroup2 hierarchy"


class Booted:
    """A running systemd. It sees `shared` at its own path and as /shared, with what the test has mounted below it
    before. The network is this machine's."""

    def __init__(self, init_pid: int, shared: Path) -> None:
        self._init_pid = init_pid
        self.shared = shared

    def run(self, *command: str, check: bool = True, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        """One command inside."""
        enter = ["nsenter", "-t", str(self._init_pid), "-m", "-p", "-C", "-i", "-u", "env", "-i"]
        path = "PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        done = subprocess.run(
            [*enter, path, *command], capture_output=True, text=True, check=False, timeout=timeout_s
        )
        assert not check or done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done

    def systemctl(self, *arguments: str, check: bool = True) -> str:
        done = self.run("systemctl", *arguments, check=False)
        if check and done.returncode != 0:
            told = self.run("journalctl", "-n", "40", "-o", "short-precise", "--no-pager", check=False).stdout
            raise AssertionError(f"systemctl {' '.join(arguments)}: {done.stderr}\n{told}")
        return done.stdout.strip()

    def show(self, unit: str, what: str) -> str:
        return self.systemctl("show", "-p", what, "--value", unit)

    def journal(self, unit: str) -> str:
        return self.run("journalctl", "-u", unit, "-o", "cat", "--no-pager").stdout

    def power_off(self, timeout_s: float) -> None:
        """As an operator does; returns when nothing of it runs any more."""
        self.systemctl("poweroff", "--no-block")
        eventually(lambda: not Path(f"/proc/{self._init_pid}").exists(), timeout_s)

    def last_journal(self, *units: str) -> str:
        """Journal after `power_off`."""
        directory = self.shared.parent / "upper/var/log/journal"
        chosen = [f"--unit={unit}" for unit in units]
        done = subprocess.run(
            ["journalctl", "-D", str(directory), *chosen, "-o", "cat", "--no-pager"],
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout


@contextmanager
def booted(workdir: Path, units: dict[str, str]) -> Iterator[Booted]:
    """Boot, with these files below /etc/systemd/system."""
    for name in ("root", "shared", "etc/systemd/system"):
        (workdir / name).mkdir(parents=True, exist_ok=True)
    overlay = workdir / "overlay"
    overlay.mkdir()
    # The overlay's own directories must not lie on an overlay, and a tmpfs takes what the services write.
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(overlay)], check=True)
    for name in ("upper", "work"):
        (overlay / name).mkdir()
        (workdir / name).symlink_to(overlay / name)
    for name, text in {"test.target": _TARGET, **units}.items():
        place = workdir / "etc/systemd/system" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    commands(workdir / "bin", sys.executable)
    for unit in _MASKED:
        (workdir / "etc/systemd/system" / unit).symlink_to("/dev/null")
    cgroup2 = _cgroup2()
    assert cgroup2 is not None
    group = cgroup2 / f"commitlogfs-test-{os.getpid()}-{workdir.name}"
    group.mkdir()
    log = (workdir / "boot.log").open("wb")
    outer = subprocess.Popen(
        ["unshare", "--mount", "--propagation", "private", "bash", "-euc", _BOOT],
        env={**os.environ, **_settings(workdir), "CG": str(group)},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    try:
        init_pid = eventually(lambda: _init_of(outer.pid))
        system = Booted(init_pid, workdir / "shared")
        eventually(
            lambda: (
                system.run("systemctl", "is-system-running", check=False).stdout.strip() in ("running", "degraded")
            ),
        )
        yield system
    finally:
        child = _init_of(outer.pid)
        if child is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(outer.pid, signal.SIGKILL)
        outer.wait(PATIENCE_S)
        log.close()
        _remove_group(group)
        subprocess.run(["umount", "-l", str(overlay)], check=False)


def commands(directory: Path, *python: str) -> None:
    """The commands of the package that `python` (a command line) imports, into the new `directory`."""
    directory.mkdir()
    for name, module in (("commitlogfs", "cli"), ("commitlogfs-daemon", "serve")):
        script = directory / name
        script.write_text(f'#!/bin/sh\nexec {shlex.join(python)} -m commitlogfs.mount.{module} "$@"\n')
        script.chmod(0o755)


def _cgroup2() -> Path | None:
    for line in Path("/proc/self/mounts").read_text().splitlines():
        fields = line.split()
        if fields[2] == "cgroup2":
            return Path(fields[1])
    return None


def _settings(workdir: Path) -> dict[str, str]:
    source = Path(__file__).parents[2]
    # What the interpreter needs and may lie in /tmp, which is another one inside.
    pythons = {sys.prefix, str(source)} if Path(sys.prefix).is_relative_to("/tmp") else set()
    values = {"W": workdir, "SOURCE": source}
    return {"PYTHONS": " ".join(pythons), **{name: str(value) for name, value in values.items()}}


def _init_of(pid: int) -> int | None:
    """The systemd that runs as the only child of the outermost process."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            if Path(f"/proc/{child}/comm").read_text() == "systemd\n":
                return int(child)
    return None


def _remove_group(group: Path) -> None:
    def is_removed() -> bool:
        for directory, _, _ in os.walk(group, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(directory)
        return not group.exists()

    eventually(is_removed)
