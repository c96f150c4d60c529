"""`make demo`: three small disks, one mount, an unmodified broker, 20,000 messages, Spark, and a clean-up.

Each step prints what it shows and the command that a user would type. Needs root and /dev/fuse. With --keep, mount
and broker stay until Ctrl-C, to be tried by hand.
Exit status: 0 all steps succeeded; 1 a step or the clean-up failed; 128 + signal: interrupted.
"""

import argparse
import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from commitlogfs.bench import rocketmq
from commitlogfs.bench.demo_site import FSTYPES, Site
from commitlogfs.bench.disks import DisksUnavailableError
from commitlogfs.bench.interrupts import InterruptedByUserError, Interrupts
from commitlogfs.bench.rocketmq import Broker, Distribution, NameServer, ReceivedMessage, RocketmqError
from commitlogfs.bench.served import CommandFailedError
from commitlogfs.console.output import make_console
from commitlogfs.store.record_layout import BODY_AT, BODY_LENGTH_AT

MESSAGES = 20_000
BODY_BYTES = 1024
SEGMENT_SIZE = "2MiB"
"""Much less than 1 GiB, so that 20,000 messages fill several segments."""
SEGMENT_BYTES = 2 << 20
TOPIC = "Demo"
STEPS = 12
LINES_SHOWN = 24
_PIPELINE = "commitlogfs-pipeline"
_ADMIN = "org.apache.rocketmq.tools.command.MQAdminStartup"
_SEND_TIMEOUT_S = 120.0
_CONSUME_IDLE_S = 30.0


class DemoFailedError(Exception):
    """A step failed; the message is one line."""


class Show:
    """Prints the steps for the user."""

    def __init__(self, steps: int) -> None:
        self._console = make_console(highlight=False, soft_wrap=True)
        self._steps = steps
        self._number = 0

    def step(self, text: str) -> None:
        self._number += 1
        self._console.print(f"\n[bold cyan]{self._number}/{self._steps}[/] [bold]{text}[/]")

    def command(self, *words: str) -> None:
        self._console.print(f"    $ {' '.join(words)}", style="green", markup=False)

    def output(self, text: str) -> None:
        lines = text.rstrip().splitlines()
        for line in lines[:LINES_SHOWN]:
            self._console.print(f"    {line}", markup=False)
        if len(lines) > LINES_SHOWN:
            self._console.print(f"    ... and {len(lines) - LINES_SHOWN} lines more", style="dim")

    def say(self, text: str, style: str = "") -> None:
        self._console.print(text, style=style, markup=False)

    @contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """A spinner on a terminal, a line elsewhere."""
        if not self._console.is_terminal:
            self.output(f"{text} ...")
            yield
            return
        with self._console.status(f"{text} ..."):
            yield

    def progress(self) -> Progress:
        columns = (TextColumn("    {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        return Progress(*columns, console=self._console, disable=not self._console.is_terminal)


class Demo:
    def __init__(self, show: Show, site: Site, interrupts: Interrupts, *, keep: bool) -> None:
        self._show = show
        self._keep = keep
        self._site = site
        self._interrupts = interrupts

    def run(self) -> float:
        """Run all steps; returns the seconds after the downloads. Raises the error of a failed step."""
        distribution = self._fetch()
        started = time.monotonic()
        with self._interrupts.shielded():
            work = self._site.make_work_directory(self._show.output)
            root = self._site.make_root(work)
        self._make_disks(work)
        self._mount()
        names, broker = self._start_broker(distribution, work, root)
        self._send(distribution, names, work)
        received = self._consume(distribution, names, work)
        self._show_map()
        self._read_back(received)
        self._show_status()
        self._count()
        self._rebuild(root, work)
        seconds = time.monotonic() - started
        if self._keep:
            self._stay(distribution, names)
        self._stop(broker)
        return seconds

    def _fetch(self) -> Distribution:
        version = rocketmq.VERSIONS[0]
        self._show.step(f"RocketMQ {version} from Maven Central, not modified in any way")
        with self._show.waiting("downloading it at the first run"):
            distribution = rocketmq.fetch(version)
        self._show.output(f"{len(list(distribution.jars.iterdir()))} jars in {distribution.jars}")
        return distribution

    def _make_disks(self, work: Path) -> None:
        self._show.step(f"Three disks of 1 GiB: {', '.join(FSTYPES)}, each in an image file")
        with self._interrupts.shielded():
            lack = self._site.make_disks(work)
        for disk, fstype in zip(self._site.disks, FSTYPES, strict=True):
            if not lack:
                self._show.command(f"mkfs.{fstype} {disk}.img && mount -o loop {disk}.img {disk}")
        if lack:
            self._show.output(f"No loop disks ({lack}); directories of one disk are used instead.")

    def _mount(self) -> None:
        self._show.step(f"One commitlog directory over all of them, with segments of {SEGMENT_SIZE}")
        with self._interrupts.shielded():
            arguments = self._site.mount(SEGMENT_SIZE)
        self._show.command("commitlogfs", *arguments)
        self._show.output(f"{self._site.mountpoint}: mounted")

    def _start_broker(self, distribution: Distribution, work: Path, root: Path) -> tuple[NameServer, Broker]:
        self._show.step("A name server and a broker with one path in its configuration")
        names = NameServer(distribution, work)
        config: dict[str, str | int | float | bool] = {
            "storePathRootDir": str(root / "store"),
            "storePathCommitLog": str(self._site.mountpoint),
            "mappedFileSizeCommitLog": SEGMENT_BYTES,
        }
        broker = Broker(distribution, names, work, config)
        for key in ("storePathCommitLog", "mappedFileSizeCommitLog"):
            self._show.output(f"{key}={config[key]}")
        self._show.command(f"sh bin/mqnamesrv & sh bin/mqbroker -n {names.address} -c broker.conf")
        with self._show.waiting("starting them"):
            for server in (names, broker):
                with self._interrupts.shielded():
                    self._site.later(server.name, server.kill)
                    server.spawn()
                server.wait_ready()
        self._show.output(f"name server on {names.address}, broker on {broker.address}, pid {broker.pid}")
        return names, broker

    def _send(self, distribution: Distribution, names: NameServer, work: Path) -> None:
        self._show.step(f"A real producer sends {MESSAGES:,} messages of {BODY_BYTES} bytes")
        acked = work / "acked"
        with self._interrupts.shielded():
            sender = rocketmq.start_sender(
                distribution, names.address, TOPIC, count=MESSAGES, size_bytes=BODY_BYTES, acked=acked
            )
            self._site.later("producer", lambda: sender.__exit__(None, None, None))
        deadline = time.monotonic() + _SEND_TIMEOUT_S
        with self._show.progress() as progress:
            bar = progress.add_task("acknowledged", total=MESSAGES)
            while sender.returncode is None and time.monotonic() < deadline:
                progress.update(bar, completed=acked.read_bytes().count(b"\n") if acked.exists() else 0)
                time.sleep(0.1)
            result = sender.wait(1.0)
            progress.update(bar, completed=result.sent)
        if result.sent != MESSAGES:
            raise DemoFailedError(
                f"{result.sent:,} of {MESSAGES:,} messages were acknowledged: {result.last_error}"
            )
        self._show.output(f"{result.sent:,} acknowledged in {result.seconds:.1f} s")

    def _consume(self, distribution: Distribution, names: NameServer, work: Path) -> list[ReceivedMessage]:
        self._show.step("A real consumer gets every one of them, and each body is recomputed and compared")
        received = work / "received"
        with self._show.waiting("consuming"):
            result = rocketmq.consume(
                distribution,
                names.address,
                TOPIC,
                expect=MESSAGES,
                idle_timeout_s=_CONSUME_IDLE_S,
                received=received,
            )
        self._show.output(
            f"{result.distinct:,} different messages, {result.duplicates} twice, {result.corrupted} corrupted, "
            f"{result.skipped} skipped, in {result.seconds:.1f} s"
        )
        if result.distinct != MESSAGES:
            raise DemoFailedError(f"{result.distinct:,} messages came back instead of {MESSAGES:,}")
        return rocketmq.read_received(received)

    def _show_map(self) -> None:
        self._show.step("The stripes: every segment is a plain file on one of the disks")
        self._type("map", str(self._site.mountpoint))
        for disk in self._site.disks:
            self._show.command("ls", str(disk))
            names = sorted(path.name for path in disk.iterdir() if path.name.isdecimal())
            self._show.output("  ".join(names[:3]) + ("  ..." if len(names) > 3 else ""))
            if not names:
                raise DemoFailedError(f"{disk}: holds no segment")

    def _read_back(self, received: list[ReceivedMessage]) -> None:
        message = sorted(received)[len(received) // 2]
        self._show.step(f"Message {message.sequence:,}, read back by its physical offset in the log")
        mountpoint = self._site.mountpoint
        self._type("read", "--offset", str(message.log_offset), "--message", str(mountpoint))
        log = mountpoint / ".commitlogfs" / "log"
        self._show.command(
            f"dd if={log} iflag=skip_bytes,count_bytes skip={message.log_offset} count={message.store_bytes}"
        )
        fd = os.open(log, os.O_RDONLY)
        try:
            record = os.pread(fd, message.store_bytes, message.log_offset)
        finally:
            os.close(fd)
        length = int.from_bytes(record[BODY_LENGTH_AT:BODY_AT], "big")
        body = record[BODY_AT:][:length]
        if body != rocketmq.make_body(message.sequence, BODY_BYTES):
            raise DemoFailedError(
                f"the bytes at log offset {message.log_offset} are not message {message.sequence}"
            )
        self._show.output(f"{len(record)} bytes; the body in them is the one that was sent")

    def _show_status(self) -> None:
        self._show.step("The state of the disks, and what will happen next")
        self._type("status", str(self._site.mountpoint))

    def _count(self) -> None:
        self._show.step("The same log as a table: Spark reads the segments and counts by topic")
        arguments = ("stats", str(self._site.mountpoint))
        self._show.command(_PIPELINE, *arguments)
        table = self._site.run(*arguments, script=_PIPELINE)
        self._show.output(table)
        row = next((line.split() for line in table.splitlines() if line.startswith(f"{TOPIC} ")), ["", "0"])
        if int(row[1].replace(",", "")) < MESSAGES:
            raise DemoFailedError(f"Spark counted {row[1]} messages of {TOPIC} instead of {MESSAGES:,}")

    def _rebuild(self, root: Path, work: Path) -> None:
        self._show.step("The broker's consume queues, rebuilt from the log and compared with its own")
        arguments = ["rebuild", "--consumequeue", "--store-root", str(root / "store")]
        arguments += ["--segment-size", SEGMENT_SIZE, "--output", str(work / "rebuilt")]
        self._show.command(_PIPELINE, *arguments)
        self._show.output(self._site.run(*arguments, script=_PIPELINE))
        rebuilt, own = work / "rebuilt/consumequeue" / TOPIC, root / "store/consumequeue" / TOPIC
        files = sorted(path.relative_to(rebuilt) for path in rebuilt.rglob("*") if path.is_file())
        unlike = [path for path in files if (rebuilt / path).read_bytes() != (own / path).read_bytes()]
        if unlike or not files:
            raise DemoFailedError(f"{len(unlike)} of {len(files)} rebuilt files differ from the broker's: {unlike}")
        self._show.command(f"diff -r {rebuilt} {own}")
        self._show.output(f"{len(files)} files, all identical")

    def _stay(self, distribution: Distribution, names: NameServer) -> None:
        self._show.step("Mount and broker stay: send and read with RocketMQ's own tool, in another terminal")
        admin = f"java -cp {shlex.quote(distribution.class_path)} {_ADMIN}"
        where = f"-n {names.address} -t {TOPIC}"
        self._show.command(f"export ROCKETMQ_HOME={shlex.quote(str(distribution.helper))}")
        self._show.command(f"{admin} sendMessage {where} -c mine -p hello")
        self._show.command(f"{admin} printMsg {where} -s mine -d true")
        self._show.output(
            f"The commands of commitlogfs take {self._site.mountpoint}. Ctrl-C stops and removes all."
        )
        try:
            while True:
                signal.pause()
        except InterruptedByUserError:
            return

    def _stop(self, broker: Broker) -> None:
        self._show.step("Stopping and removing everything")
        self._show.command("sh bin/mqshutdown broker && sh bin/mqshutdown namesrv")
        self._show.command("commitlogfs umount --unguard", str(self._site.mountpoint))
        with self._show.waiting("a clean stop of the broker takes some 15 s"):
            broker.stop()

    def _type(self, *arguments: str) -> None:
        self._show.command("commitlogfs", *arguments)
        self._show.output(self._site.run(*arguments))


def main() -> int:
    parser = argparse.ArgumentParser(description="Show commitlogfs with a real broker.")
    parser.add_argument("--keep", action="store_true", help="keep mount and broker until Ctrl-C")
    keep = parser.parse_args().keep
    show, site, interrupts = Show(STEPS + keep), Site(), Interrupts()
    lack = _why_not()
    if lack:
        show.say(f"demo: {lack}", "red")
        return 1
    interrupts.install()
    status, seconds = 0, 0.0
    try:
        seconds = Demo(show, site, interrupts, keep=keep).run()
    except InterruptedByUserError as error:
        show.say(f"\ninterrupted ({error}): cleaning up", "yellow")
        status = 128 + error.number
    except (DemoFailedError, CommandFailedError, DisksUnavailableError, RocketmqError, OSError) as error:
        show.say(f"\nThis step failed: {error}", "red")
        status = 1
    finally:
        interrupts.shield_for_good()
        left = site.clear()
    for line in left:
        show.say(f"not removed: {line}", "red")
    if not status and not left:
        show.say(
            f"\n{MESSAGES:,} messages striped over three disks, consumed, read back by offset and counted, in "
            f"{seconds:.0f} s after the downloads. Everything is removed again.",
            "bold",
        )
    return status or int(bool(left))


def _why_not() -> str:
    if os.geteuid() != 0:
        return "root is required to make and mount disks; run sudo make demo"
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return f"/dev/fuse: {error.strerror}; load the fuse module, or give the container the device"
    return ""


if __name__ == "__main__":
    sys.exit(main())
