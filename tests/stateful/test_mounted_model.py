"""The mounted directory and a model of it, side by side, under random sequences of operations.

The model is a dictionary of byte strings with the rules of docs/reference/errors.md. Whatever the two answer
differently - content, size, listing, attributes, errno - is a bug in one of them. A sequence that found one
lives on as a plain test in test_mounted_cases.py.
"""

import errno
import mmap
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from support.pools import PoolMount, segment_name
from support.waiting import eventually

pytestmark = [pytest.mark.mounted, pytest.mark.full]

SIZE = 64 * 1024
LAST_INDEX = 9
"""Segments 0 ... LAST_INDEX are used: few enough that names collide, enough for gaps and several disks."""
MAX_HELD = 6
SOAK_EXAMPLES = int(os.environ.get("COMMITLOGFS_SOAK_EXAMPLES", "400"))
MIN_STEPS_BETWEEN_REMOUNTS = 20
"""A remount takes as long as a thousand other steps."""

INVALID_NAMES = (
    "abc",
    "0" * 19,
    "0" * 21,
    f"{SIZE + 1:020d}",
    f"{2**63 - 1:020d}",
    f".{0:020d}",
    f".{0:020d}.a.b",
    "٠" * 20,  # noqa: RUF001 - digits, but not ASCII ones
)

indexes = st.integers(0, LAST_INDEX)
suffixes = st.sampled_from(["a", "Xy12z3"])
positions = st.one_of(
    st.integers(0, SIZE + 2),
    st.sampled_from([0, 1, 4095, 4096, 4097, SIZE // 2, SIZE - 4096, SIZE - 1, SIZE]),
)
lengths = st.one_of(st.integers(1, 5000), st.sampled_from([1, 4096, SIZE // 2, SIZE, SIZE + 1]))
fills = st.integers(1, 255)
modes = st.sampled_from([0o600, 0o640, 0o644, 0o444, 0o666, 0o755, 0o4755])
times_ns = st.integers(10**18, 2 * 10**18)


@dataclass(eq=False)
class ModelFile:
    """One file, named or not."""

    content: bytearray = field(default_factory=bytearray)
    mode: int = 0o644
    mtime_ns: int | None = None
    """None while some clock decides."""
    ino: int | None = None
    unsynced: bool = False
    """Has mapped stores that no msync or fsync has followed: the backing file may lag behind."""
    linked: bool = True

    @property
    def is_whole(self) -> bool:
        return len(self.content) == SIZE


@dataclass(eq=False)
class Held:
    """An open descriptor of the mount, and the file it must keep showing."""

    fd: int
    file: ModelFile


def pattern(fill: int, length: int) -> bytes:
    """Bytes that differ from their neighbours, with a period of no block size: a shifted read shows."""
    period = bytes((fill + 7 * i) & 0xFF for i in range(251))
    return (period * (length // 251 + 1))[:length]


class MountedModel(RuleBasedStateMachine):
    """`pool` is set by the test that runs the machine; one mount serves all examples."""

    pool: PoolMount

    def __init__(self) -> None:
        super().__init__()
        self.names: dict[str, ModelFile] = {}
        self.held: list[Held] = []
        self.steps = 0
        assert os.listdir(self.pool.mountpoint) == []

    # --- helpers -------------------------------------------------------------------------------------

    def path(self, name: str) -> str:
        return os.path.join(self.pool.mountpoint, name)

    @staticmethod
    def segment(index: int) -> str:
        return segment_name(index, SIZE)

    def temporary(self, index: int, suffix: str) -> str:
        return f".{self.segment(index)}.{suffix}"

    def whole_segments(self) -> dict[str, ModelFile]:
        return {name: file for name, file in self.names.items() if name[0] != "." and file.is_whole}

    def pick(self, number: int) -> Held:
        return self.held[number % len(self.held)]

    def pick_name(self, number: int) -> str:
        names = sorted(self.names)
        return names[number % len(names)]

    def keep(self, fd: int, file: ModelFile, hold: bool) -> None:
        if hold and len(self.held) < MAX_HELD:
            self.held.append(Held(fd, file))
        else:
            os.close(fd)

    def expect(self, expected: int, call: Callable[..., object], *arguments: object) -> None:
        """The call fails with this errno; 0: it succeeds."""
        try:
            call(*arguments)
        except OSError as error:
            got = error.errno or -1
        else:
            got = 0
        assert got == expected, (
            f"{errno.errorcode.get(got, got)} instead of {errno.errorcode.get(expected, expected)}"
        )

    def grow_errno(self, file: ModelFile, new_size: int) -> int:
        if new_size == len(file.content):
            return 0
        if new_size > SIZE:
            return errno.EFBIG
        return 0 if new_size == SIZE else errno.EINVAL

    def check_content(self, name: str, file: ModelFile) -> None:
        assert Path(self.path(name)).read_bytes() == bytes(file.content), name

    @initialize(chosen=st.sets(indexes, min_size=2, max_size=6), fill=fills)
    def begin_with_segments(self, chosen: set[int], fill: int) -> None:
        for index in sorted(chosen):
            self.create_as_a_broker(index, True, hold=index % 2 == 0)
            if index % 2 == 0:
                self.write_held(len(self.held) - 1, 0, SIZE, (fill + index) % 255 + 1)
        self.copy_in(min(chosen), "a", fill, 4096, SIZE)
        self.copy_in(LAST_INDEX, "a", fill, 4096, SIZE // 2)

    # --- creating and growing ------------------------------------------------------------------------

    @rule(index=indexes, exclusive=st.booleans(), hold=st.booleans())
    def create_as_a_broker(self, index: int, exclusive: bool, hold: bool) -> None:
        """open(O_CREAT), one ftruncate to the full size."""
        name = self.segment(index)
        flags = os.O_RDWR | os.O_CREAT | (os.O_EXCL if exclusive else 0)
        if exclusive and name in self.names:
            self.expect(errno.EEXIST, os.open, self.path(name), flags, 0o644)
            return
        fd = os.open(self.path(name), flags, 0o644)
        file = self.names.setdefault(name, ModelFile())
        os.ftruncate(fd, SIZE)
        if not file.is_whole:
            file.mtime_ns = None
        file.content.extend(bytes(SIZE - len(file.content)))
        self.keep(fd, file, hold)

    @rule(index=indexes, suffix=st.one_of(st.none(), suffixes), hold=st.booleans())
    def create_empty(self, index: int, suffix: str | None, hold: bool) -> None:
        name = self.segment(index) if suffix is None else self.temporary(index, suffix)
        if name not in self.names:
            fd = os.open(self.path(name), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
            self.keep(fd, self.names.setdefault(name, ModelFile()), hold)

    @rule(index=indexes, suffix=st.one_of(st.none(), suffixes), fill=fills, chunk=lengths, stop=positions)
    def copy_in(self, index: int, suffix: str | None, fill: int, chunk: int, stop: int) -> None:
        """Sequential growing writes, as cp and rsync do; `stop` before the end is an interrupted copy."""
        name = self.segment(index) if suffix is None else self.temporary(index, suffix)
        if name in self.names:
            return
        data = pattern(fill, min(stop, SIZE))
        fd = os.open(self.path(name), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            for start in range(0, len(data), max(chunk, 1024)):
                piece = data[start : start + max(chunk, 1024)]
                assert os.write(fd, piece) == len(piece)
        finally:
            os.close(fd)
        self.names[name] = ModelFile(bytearray(data))

    @precondition(lambda self: self.names)
    @rule(
        number=st.integers(0, 99), new_size=st.sampled_from([0, 1, SIZE // 2, SIZE - 1, SIZE, SIZE + 1, 4 * SIZE])
    )
    def resize(self, number: int, new_size: int) -> None:
        name = self.pick_name(number)
        file = self.names[name]
        expected = self.grow_errno(file, new_size)
        self.expect(expected, os.truncate, self.path(name), new_size)
        if expected == 0 and new_size != len(file.content):
            file.content.extend(bytes(new_size - len(file.content)))
            file.mtime_ns = None
        elif expected == 0:
            file.mtime_ns = None  # the kernel asks for a new mtime with any ftruncate

    @precondition(lambda self: self.held)
    @rule(number=st.integers(0, 99), new_size=st.sampled_from([0, SIZE // 2, SIZE, SIZE + 1]))
    def resize_held(self, number: int, new_size: int) -> None:
        held = self.pick(number)
        expected = self.grow_errno(held.file, new_size)
        self.expect(expected, os.ftruncate, held.fd, new_size)
        if expected == 0:
            held.file.content.extend(bytes(new_size - len(held.file.content)))
            held.file.mtime_ns = None

    @precondition(lambda self: self.names)
    @rule(number=st.integers(0, 99))
    def open_truncating(self, number: int) -> None:
        name = self.pick_name(number)
        file = self.names[name]
        if file.content:
            self.expect(errno.EINVAL, os.open, self.path(name), os.O_RDWR | os.O_TRUNC)
            self.check_content(name, file)

    # --- reading and writing -------------------------------------------------------------------------

    @precondition(lambda self: self.names and len(self.held) < MAX_HELD)
    @rule(number=st.integers(0, 99))
    def open_held(self, number: int) -> None:
        name = self.pick_name(number)
        self.held.append(Held(os.open(self.path(name), os.O_RDWR), self.names[name]))

    @precondition(lambda self: self.held)
    @rule(number=st.integers(0, 99))
    def close_held(self, number: int) -> None:
        held = self.pick(number)
        self.held.remove(held)
        os.close(held.fd)

    @precondition(lambda self: self.held)
    @rule(number=st.integers(0, 99), position=positions, length=lengths, fill=fills)
    def write_held(self, number: int, position: int, length: int, fill: int) -> None:
        held = self.pick(number)
        data = pattern(fill, length)
        if position + length > SIZE and self.pool.passes_through:
            # Nobody is asked; what lies past the end is cut off at the next look.
            assert os.pwrite(held.fd, data, position) == length
            assert os.fstat(held.fd).st_size == SIZE
            data = data[: max(0, SIZE - position)]
            position = min(position, SIZE)
        elif position >= SIZE:
            self.expect(errno.EFBIG, os.pwrite, held.fd, data, position)
            return
        elif position + length > SIZE:
            data = data[: SIZE - position]
            assert os.pwrite(held.fd, data + b"over the end", position) == len(data)
        else:
            assert os.pwrite(held.fd, data, position) == length
        content = held.file.content
        content.extend(bytes(max(0, position - len(content))))
        content[position : position + len(data)] = data
        held.file.mtime_ns = None

    @precondition(lambda self: any(held.file.is_whole for held in self.held))
    @rule(number=st.integers(0, 99), position=positions, length=lengths, fill=fills, sync=st.booleans())
    def store_mapped(self, number: int, position: int, length: int, fill: int, sync: bool) -> None:
        whole = [held for held in self.held if held.file.is_whole]
        held = whole[number % len(whole)]
        position = min(position, SIZE - 1)
        data = pattern(fill, min(length, SIZE - position))
        with mmap.mmap(held.fd, SIZE) as mapped:
            mapped[position : position + len(data)] = data
            if sync:
                mapped.flush()
            assert mapped[:] == held.file.content[:position] + data + held.file.content[position + len(data) :]
        held.file.content[position : position + len(data)] = data
        held.file.unsynced = not sync
        held.file.mtime_ns = None

    @precondition(lambda self: self.held)
    @rule(number=st.integers(0, 99), data_only=st.booleans())
    def sync_held(self, number: int, data_only: bool) -> None:
        held = self.pick(number)
        (os.fdatasync if data_only else os.fsync)(held.fd)
        held.file.unsynced = False

    @precondition(lambda self: self.held)
    @rule(number=st.integers(0, 99), position=positions, length=lengths)
    def read_held(self, number: int, position: int, length: int) -> None:
        """Whatever happened to its name, a descriptor goes on showing its own file."""
        held = self.pick(number)
        assert os.pread(held.fd, length, position) == bytes(held.file.content[position : position + length])
        status = os.fstat(held.fd)
        assert status.st_size == len(held.file.content)
        assert status.st_nlink == (1 if held.file.linked else 0)

    @precondition(lambda self: any(held.file.content for held in self.held))
    @rule(number=st.integers(0, 99))
    def read_mapped(self, number: int) -> None:
        filled = [held for held in self.held if held.file.content]
        held = filled[number % len(filled)]
        with mmap.mmap(held.fd, len(held.file.content), prot=mmap.PROT_READ) as mapped:
            assert mapped[:] == bytes(held.file.content)

    @precondition(lambda self: self.names)
    @rule(number=st.integers(0, 99))
    def read_whole(self, number: int) -> None:
        name = self.pick_name(number)
        self.check_content(name, self.names[name])

    @rule(
        number=st.integers(0, 99),
        step=st.integers(-1, 2),
        position=st.sampled_from([0, 1, 5000, SIZE // 2, SIZE - 1]),
        length=st.one_of(st.integers(1, 5000), st.integers(1, 4 * SIZE)),
    )
    def read_log(self, number: int, step: int, position: int, length: int) -> None:
        """`.commitlogfs/log`: by log offset, EIO in a gap, short before one, nothing past the end."""
        whole = self.whole_segments()
        near = sorted(int(name) // SIZE for name in whole) or [0]
        index = max(0, near[number % len(near)] + step)
        if any(file.unsynced for file in whole.values()):
            return
        offset = index * SIZE + position
        end = max((int(name) + SIZE for name in whole), default=0)
        expected = b""
        at = offset
        while at < min(offset + length, end):
            file = whole.get(f"{at - at % SIZE:020d}")
            if file is None:
                break
            piece = bytes(file.content[at % SIZE : at % SIZE + offset + length - at])
            expected += piece
            at += len(piece)
        fd = os.open(self.path(".commitlogfs/log"), os.O_RDONLY)
        try:
            if offset < end and not expected:
                self.expect(errno.EIO, os.pread, fd, length, offset)
            else:
                assert os.pread(fd, length, offset) == expected
            assert os.fstat(fd).st_size == end
        finally:
            os.close(fd)

    # --- names ---------------------------------------------------------------------------------------

    @precondition(lambda self: self.names)
    @rule(number=st.integers(0, 99))
    def unlink(self, number: int) -> None:
        name = self.pick_name(number)
        os.unlink(self.path(name))
        self.names.pop(name).linked = False
        self.expect(errno.ENOENT, os.stat, self.path(name))
        self.expect(errno.ENOENT, os.unlink, self.path(name))

    @precondition(lambda self: any(name[0] == "." for name in self.names))
    @rule(number=st.integers(0, 99), index=st.one_of(st.none(), indexes), suffix=st.one_of(st.none(), suffixes))
    def rename_temporary(self, number: int, index: int | None, suffix: str | None) -> None:
        """Onto its own segment (index None), another one, or another temporary."""
        temporaries = sorted(name for name in self.names if name[0] == ".")
        old = temporaries[number % len(temporaries)]
        index = int(old[1:21]) // SIZE if index is None else index
        new = self.segment(index) if suffix is None else self.temporary(index, suffix)
        expected = 0
        if old == new:
            os.rename(self.path(old), self.path(new))
            return
        if new in self.names:
            expected = errno.EEXIST
        elif suffix is None and not self.names[old].is_whole:
            expected = errno.EINVAL
        self.expect(expected, os.rename, self.path(old), self.path(new))
        if not expected:
            self.names[new] = self.names.pop(old)
            self.expect(errno.ENOENT, os.stat, self.path(old))

    @precondition(lambda self: any(name[0] != "." for name in self.names))
    @rule(number=st.integers(0, 99), index=indexes)
    def refuse_rename_of_a_segment(self, number: int, index: int) -> None:
        segments = sorted(name for name in self.names if name[0] != ".")
        old = segments[number % len(segments)]
        new = self.segment(index)
        if new != old:
            self.expect(errno.EPERM, os.rename, self.path(old), self.path(new))
        self.expect(errno.EPERM, os.rename, self.path(old), self.path(self.temporary(index, "z")))

    @rule(index=indexes, name=st.sampled_from(INVALID_NAMES))
    def refuse_other_names_and_kinds(self, index: int, name: str) -> None:
        self.expect(errno.EINVAL, os.open, self.path(name), os.O_RDWR | os.O_CREAT, 0o644)
        self.expect(errno.ENOENT, os.stat, self.path(name))
        self.expect(errno.ENOENT, os.unlink, self.path(name))
        path = self.path(self.segment(index))
        expected = errno.EEXIST if self.segment(index) in self.names else errno.EPERM
        self.expect(expected, os.mkdir, path)
        self.expect(expected, os.symlink, "/etc/passwd", path)
        self.expect(expected, os.mkfifo, path)

    # --- attributes ----------------------------------------------------------------------------------

    @precondition(lambda self: self.names)
    @rule(number=st.integers(0, 99), mode=modes)
    def change_mode(self, number: int, mode: int) -> None:
        name = self.pick_name(number)
        os.chmod(self.path(name), mode)
        self.names[name].mode = mode & 0o777

    @precondition(lambda self: self.names)
    @rule(number=st.integers(0, 99), time_ns=times_ns)
    def change_times(self, number: int, time_ns: int) -> None:
        name = self.pick_name(number)
        os.utime(self.path(name), ns=(time_ns, time_ns))
        self.names[name].mtime_ns = time_ns

    @precondition(lambda self: self.held)
    @rule(number=st.integers(0, 99), mode=modes)
    def change_mode_of_held(self, number: int, mode: int) -> None:
        held = self.pick(number)
        os.fchmod(held.fd, mode)
        held.file.mode = mode & 0o777

    # --- the whole directory -------------------------------------------------------------------------

    @invariant()
    def listing_is_complete(self) -> None:
        self.steps += 1
        listed = sorted(os.listdir(self.pool.mountpoint))
        assert listed == sorted(self.whole_segments())
        if self.steps % 4 == 0:
            self.attributes_agree()

    def attributes_agree(self) -> None:
        for name, file in self.names.items():
            status = os.stat(self.path(name))
            assert stat.S_ISREG(status.st_mode), name
            assert (stat.S_IMODE(status.st_mode), status.st_size) == (file.mode, len(file.content)), name
            assert status.st_nlink == 1, name
            assert status.st_blocks * 512 >= SIZE, "every block of a segment is reserved"
            if file.mtime_ns is not None:
                assert status.st_mtime_ns == file.mtime_ns, name
            if file.ino is not None:
                assert status.st_ino == file.ino, "the inode number changed"
            file.ino = status.st_ino
        inos = [file.ino for file in self.names.values()]
        assert len(set(inos)) == len(inos)

    @precondition(
        lambda self: (
            self.steps >= MIN_STEPS_BETWEEN_REMOUNTS
            and self.names
            # A segment that a copy left unfinished would be quarantined: test_mounted_cases.py.
            and all(len(file.content) in (0, SIZE) for name, file in self.names.items() if name[0] != ".")
        )
    )
    @rule()
    def remount(self) -> None:
        self.attributes_agree()
        self.close_all()
        self.pool.restart()
        self.steps = 0
        for name in self.empty_leading_segments():
            del self.names[name]
        eventually(lambda: self.names_on_disks() == set(self.names))
        for file in self.names.values():
            file.unsynced = False
        self.attributes_agree()
        for name, file in self.names.items():
            self.check_content(name, file)
        self.disks_agree()

    def empty_leading_segments(self) -> list[str]:
        """Empty segments before the first one with content: a new mount removes them as leftovers."""
        segments = sorted(name for name in self.names if name[0] != ".")
        with_content = [name for name in segments if self.names[name].content]
        return [name for name in segments if with_content and name < with_content[0]]

    def names_on_disks(self) -> set[str]:
        return {name for disk in self.pool.disks for name in os.listdir(disk) if name != ".commitlogfs"}

    def disks_agree(self) -> None:
        """The disks' directories equal the model: no second copies, no other files."""
        beneath: dict[str, bytes] = {}
        for disk in self.pool.disks:
            for entry in os.scandir(disk):
                assert entry.name not in beneath, f"{entry.name} lies on two disks"
                assert entry.name == ".commitlogfs" or entry.name in self.names, f"{entry.path} is left"
                if entry.is_file():
                    beneath[entry.name] = Path(entry.path).read_bytes()
        assert beneath.keys() == self.names.keys()
        for name, file in self.names.items():
            if not file.unsynced:
                assert beneath[name] == bytes(file.content), name

    def close_all(self) -> None:
        for held in self.held:
            os.close(held.fd)
        self.held.clear()

    def teardown(self) -> None:
        try:
            self.disks_agree()
        finally:
            self.close_all()
            for name in [*self.names, *os.listdir(self.pool.mountpoint)]:
                if os.path.lexists(self.path(name)):
                    os.unlink(self.path(name))
        self.names.clear()
        self.disks_agree()
        self.retired_are_freed()

    def retired_are_freed(self) -> None:
        """close(2) returns before the kernel tells the daemon, so this may take a moment."""
        eventually(lambda: not any(os.listdir(disk) for disk in self.pool.disks))


def run_model(pool: PoolMount, chosen: settings) -> None:
    machine = type("MountedModelOfThisPool", (MountedModel,), {"pool": pool})
    run_state_machine_as_test(machine, settings=settings(chosen, suppress_health_check=list(HealthCheck)))


@pytest.fixture(params=["auto", "off"], ids=["passed", "plain"])
def pool(make_pool, request) -> PoolMount:
    settings = {"on_missing": '"degraded"', "passthrough": f'"{request.param}"'}  # gaps are part of the game
    pool = make_pool(3, segment_size=SIZE, settings=settings)
    pool.start()
    return pool


def test_model_agrees(pool: PoolMount) -> None:
    """Always the same sequences. A failure is not shrunk here, which would take minutes: the soak does that."""
    chosen = settings(max_examples=16, stateful_step_count=60, phases=[Phase.generate])
    run_model(pool, chosen)
    assert "unexpected_error" not in pool.log_path.read_text()


@pytest.mark.soak
def test_model_agrees_for_long(pool: PoolMount) -> None:
    """New sequences in every run; a failure is shrunk and printed with a blob that reproduces it."""
    chosen = settings(max_examples=SOAK_EXAMPLES, stateful_step_count=80, derandomize=False, print_blob=True)
    run_model(pool, chosen)
    assert "unexpected_error" not in pool.log_path.read_text()
