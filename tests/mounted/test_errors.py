"""Errnos of operations that the mounted directory refuses. REFUSALS equals the table in
docs/reference/errors.md."""

import ctypes
import errno
import mmap
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.pools import MIB, PoolMount, segment_bytes

pytestmark = pytest.mark.mounted
BOTH_MODES = True

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "errors.md"

SEEK_END_OF_DATA = (os.SEEK_DATA, os.SEEK_HOLE)
RENAME_EXCHANGE = 2
KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE, COLLAPSE_RANGE = 1, 2, 16, 8
LIBC = ctypes.CDLL(None, use_errno=True)

NO_SEGMENTS = [
    b"0" * 19,
    b"0" * 21,
    b"-" + b"0" * 19,
    b"+" + b"0" * 19,
    b" " + b"0" * 19,
    b"0x" + b"0" * 18,
    "\N{ARABIC-INDIC DIGIT ZERO}".encode() * 20,
    b"0" * 19 + b"\n",
    b"a\nb",
    b"\xff\xfe\x80",
    b"x" * 255,
    b"x" * 256,
    b"0" * 1025,
    b"consumequeue",
    b"checkpoint",
    b".hidden",
    b".nfs000000000001",
    b"lost+found",
    b".%020d" % 0,
    b".%020d." % 0,
    b".%020d.%b" % (0, b"x" * 33),
    b".%020d.a/b".replace(b"/", b"\\") % 0,
    b"%020d~" % 0,
    b"%020d.tmp" % 0,
]
NO_OFFSETS = [
    b"%020d" % offset for offset in (1, MIB - 1, MIB + 1, 2**63 // MIB * MIB, 2**63 - MIB, 2**64, 10**20 - 1)
]


class Log:
    """The mount as the attempts see it: `whole` is a segment with content, `absent` none, `temporary` a copy
    that is not finished, `finished` one that is."""

    def __init__(self, pool: PoolMount) -> None:
        self.root = os.fsencode(pool.mountpoint)
        self.pool = pool
        self.whole, self.other, self.absent = (os.fsencode(pool.path(index)) for index in (0, 1, 7))
        self.temporary = self.root + b"/.%020d.half" % (8 * MIB)
        self.finished = self.root + b"/.%020d.done" % (9 * MIB)
        self.control = self.root + b"/.commitlogfs"
        self.outside = os.fsencode(pool.workdir)

    def name(self, name: bytes) -> bytes:
        return self.root + b"/" + name


Attempt = Callable[[Log], object]


@dataclass(frozen=True)
class Refusal:
    operation: str
    errno: int
    attempts: tuple[Attempt, ...]
    plain_attempts: tuple[Attempt, ...] = ()
    """Not with passthrough: nobody is asked about the writes of one who also reads (test_passthrough.py)."""


def opening(path: Callable[[Log], bytes], flags: int) -> Attempt:
    return lambda log: os.close(os.open(path(log), flags, 0o644))


def creating(name: bytes) -> Attempt:
    return opening(lambda log: log.name(name), os.O_RDWR | os.O_CREAT)


def with_fd(work: Callable[[int], object], flags: int = os.O_RDWR) -> Attempt:
    def attempt(log: Log) -> None:
        fd = os.open(log.whole, flags)
        try:
            work(fd)
        finally:
            os.close(fd)

    return attempt


def writes_past_the_end(flags: int) -> tuple[Attempt, ...]:
    return (
        with_fd(lambda fd: os.pwrite(fd, b"x", MIB), flags),
        with_fd(lambda fd: os.pwrite(fd, b"x", 100 * MIB), flags),
        with_fd(lambda fd: (os.lseek(fd, 5 * MIB, os.SEEK_SET), os.write(fd, b"x")), flags),
    )


def checked(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def allocating(mode: int) -> Attempt:
    size = ctypes.c_long(4096)
    return with_fd(lambda fd: checked(LIBC.fallocate(fd, mode, ctypes.c_long(0), size)))


def bind_socket(log: Log) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        # Through a descriptor: the path of a socket is short.
        directory = os.open(log.root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            sock.bind(f"/proc/self/fd/{directory}/{os.path.basename(log.absent).decode()}")
        finally:
            os.close(directory)


def map_control_file(log: Log) -> None:
    fd = os.open(log.control + b"/log", os.O_RDONLY)
    try:
        mmap.mmap(fd, 4096, mmap.MAP_SHARED, mmap.PROT_READ).close()
    finally:
        os.close(fd)


REFUSALS = [
    Refusal("create a name that is not 20 digits", errno.EINVAL, tuple(map(creating, NO_SEGMENTS))),
    Refusal(
        "create a name that is not a multiple of the segment size, or ends above 2^63",
        errno.EINVAL,
        tuple(map(creating, NO_OFFSETS)),
    ),
    Refusal(
        "create a segment that exists, with O_EXCL",
        errno.EEXIST,
        (opening(lambda log: log.whole, os.O_RDWR | os.O_CREAT | os.O_EXCL),),
    ),
    Refusal(
        "mkdir",
        errno.EPERM,
        (lambda log: os.mkdir(log.absent), lambda log: os.mkdir(log.name(b"directory"))),
    ),
    Refusal("rmdir of a segment", errno.ENOTDIR, (lambda log: os.rmdir(log.whole),)),
    Refusal(
        "symlink, link",
        errno.EPERM,
        (
            lambda log: os.symlink(b"/etc/passwd", log.absent),
            lambda log: os.symlink(os.path.basename(log.whole), log.name(b"link")),
            lambda log: os.link(log.whole, log.absent),
            lambda log: os.link(log.whole, log.temporary + b"x"),
        ),
    ),
    Refusal(
        "mknod, mkfifo, bind of a socket",
        errno.EPERM,
        (lambda log: os.mknod(log.absent, 0o100644), lambda log: os.mkfifo(log.absent), bind_socket),
    ),
    Refusal("open with O_TMPFILE", errno.EOPNOTSUPP, (opening(lambda log: log.root, os.O_RDWR | os.O_TMPFILE),)),
    Refusal(
        "rename of a segment",
        errno.EPERM,
        (
            lambda log: os.rename(log.whole, log.absent),
            lambda log: os.rename(log.whole, log.other),
            lambda log: os.rename(log.whole, log.name(b".%020d.x" % 0)),
            lambda log: os.rename(log.whole, log.name(b"other")),
        ),
    ),
    Refusal(
        "rename out of or into the mount",
        errno.EXDEV,
        (
            lambda log: os.rename(log.whole, log.outside + b"/out"),
            lambda log: os.rename(log.outside + b"/foreign", log.absent),
        ),
    ),
    Refusal(
        "rename of a finished temporary onto a segment that exists",
        errno.EEXIST,
        (lambda log: os.rename(log.finished, log.whole),),
    ),
    Refusal("rename of an unfinished temporary", errno.EINVAL, (lambda log: os.rename(log.temporary, log.absent),)),
    Refusal(
        "rename of a temporary to a name that is not a segment's",
        errno.EINVAL,
        (
            lambda log: os.rename(log.finished, log.name(b"other")),
            lambda log: os.rename(log.finished, log.name(b"%020d" % 5)),
        ),
    ),
    Refusal(
        "exchange of two names",
        errno.EPERM,
        (
            lambda log: checked(LIBC.renameat2(-100, log.whole, -100, log.other, RENAME_EXCHANGE)),
            lambda log: checked(LIBC.renameat2(-100, log.finished, -100, log.other, RENAME_EXCHANGE)),
        ),
    ),
    Refusal(
        "open of a segment with O_TRUNC",
        errno.EINVAL,
        tuple(
            opening(lambda log: log.whole, access | os.O_TRUNC)
            for access in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR | os.O_CREAT)
        ),
    ),
    Refusal(
        "truncate to any size but the segment size",
        errno.EINVAL,
        (
            lambda log: os.truncate(log.whole, 0),
            lambda log: os.truncate(log.whole, MIB - 1),
            lambda log: os.truncate(log.temporary, 4096),
            lambda log: os.truncate(log.temporary, MIB // 2),
            with_fd(lambda fd: os.ftruncate(fd, 4096)),
        ),
    ),
    Refusal(
        "truncate or posix_fallocate above the segment size",
        errno.EFBIG,
        (
            lambda log: os.truncate(log.whole, MIB + 1),
            lambda log: os.truncate(log.temporary, 2 * MIB),
            with_fd(lambda fd: os.ftruncate(fd, 2**62)),
        ),
        plain_attempts=(with_fd(lambda fd: os.posix_fallocate(fd, 0, MIB + 1)),),
    ),
    Refusal(
        "write at or past the end of the segment",
        errno.EFBIG,
        writes_past_the_end(os.O_WRONLY),
        plain_attempts=writes_past_the_end(os.O_RDWR),
    ),
    Refusal(
        "append to a whole segment",
        errno.EFBIG,
        (
            with_fd(lambda fd: os.write(fd, b"x"), os.O_WRONLY | os.O_APPEND),
            with_fd(lambda fd: os.write(fd, b"x"), os.O_RDWR | os.O_APPEND),
        ),
    ),
    Refusal(
        "fallocate, hole punching",
        errno.EOPNOTSUPP,
        tuple(map(allocating, (0, KEEP_SIZE, KEEP_SIZE | PUNCH_HOLE, ZERO_RANGE, COLLAPSE_RANGE))),
    ),
    Refusal(
        "set or remove an extended attribute",
        errno.EPERM,
        (
            lambda log: os.setxattr(log.whole, b"user.mine", b"1"),
            lambda log: os.setxattr(log.whole, b"user.commitlogfs.disk", b"/elsewhere"),
            lambda log: os.setxattr(log.root, b"user.mine", b"1"),
            lambda log: os.removexattr(log.whole, b"user.commitlogfs.disk"),
        ),
    ),
    Refusal(
        "set or remove an ACL",
        errno.EOPNOTSUPP,
        (
            lambda log: os.setxattr(log.whole, b"system.posix_acl_access", bytes.fromhex("02000000")),
            lambda log: os.removexattr(log.whole, b"system.posix_acl_access"),
        ),
    ),
    Refusal(
        "read an unknown extended attribute",
        errno.ENODATA,
        (
            lambda log: os.getxattr(log.whole, b"user.mine"),
            lambda log: os.getxattr(log.whole, b"user.commitlogfs.mine"),
            lambda log: os.getxattr(log.whole, b"security.capability"),
        ),
    ),
    Refusal(
        "SEEK_DATA, SEEK_HOLE at the end",
        errno.ENXIO,
        tuple(with_fd(lambda fd, whence=whence: os.lseek(fd, MIB, whence)) for whence in SEEK_END_OF_DATA),
    ),
    Refusal("readlink of a segment", errno.EINVAL, (lambda log: os.readlink(log.whole),)),
    Refusal(
        "open or unlink of a name that does not exist",
        errno.ENOENT,
        (
            opening(lambda log: log.absent, os.O_RDONLY),
            opening(lambda log: log.name(b"x" * 256), os.O_RDONLY),
            opening(lambda log: log.name(b"\xff\xfe"), os.O_RDONLY),
            lambda log: os.unlink(log.absent),
            lambda log: os.unlink(log.name(b"other")),
        ),
    ),
    Refusal(
        "open of the directory for writing",
        errno.EISDIR,
        (opening(lambda log: log.root, os.O_RDWR), creating(b".."), creating(b".commitlogfs")),
    ),
    Refusal(
        "create, remove or rename in `.commitlogfs`",
        errno.EPERM,
        (
            opening(lambda log: log.control + b"/mine", os.O_RDWR | os.O_CREAT),
            opening(lambda log: log.control + b"/%020d" % 0, os.O_RDWR | os.O_CREAT),
            lambda log: os.mkdir(log.control + b"/directory"),
            lambda log: os.unlink(log.control + b"/log"),
            lambda log: os.rmdir(log.control),
            lambda log: os.rename(log.control + b"/log", log.absent),
            lambda log: os.rename(log.finished, log.control + b"/log"),
            lambda log: os.link(log.control + b"/log", log.absent),
        ),
    ),
    Refusal(
        "open of a control file for writing, truncate, chmod",
        errno.EPERM,
        (
            opening(lambda log: log.control + b"/log", os.O_RDWR),
            opening(lambda log: log.control + b"/status.json", os.O_WRONLY | os.O_TRUNC),
            lambda log: os.truncate(log.control + b"/log", 0),
            lambda log: os.chmod(log.control + b"/metrics", 0o666),
            lambda log: os.chown(log.control, 1, 1),
            lambda log: os.utime(log.control + b"/log"),
        ),
    ),
    Refusal("shared mapping of a control file", errno.ENODEV, (map_control_file,)),
    Refusal(
        "open of a control file that does not exist",
        errno.ENOENT,
        (opening(lambda log: log.control + b"/mine", os.O_RDONLY),),
    ),
]


@pytest.fixture(scope="module")
def log(shared: PoolMount) -> Log:
    shared.make_segments(range(2))
    (shared.workdir / "foreign").write_bytes(b"foreign")
    log = Log(shared)
    with open(log.temporary, "wb") as half:
        half.write(bytes(5000))
    with open(log.finished, "wb") as done:
        done.write(bytes(MIB))
    return log


def snapshot(log: Log) -> object:
    """Everything that an attempt must not change: names, sizes and content, through the mount and on the disks."""
    disks = [{name: (disk / name).read_bytes() for name in os.listdir(disk)} for disk in map(Path, log.pool.disks)]
    return sorted(os.listdir(log.root)), disks, os.listdir(log.control)


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: refusal.operation)
def test_refused_and_nothing_changed(log: Log, refusal: Refusal) -> None:
    before = snapshot(log)
    attempts = refusal.attempts if log.pool.passes_through else refusal.attempts + refusal.plain_attempts
    for number, attempt in enumerate(attempts):
        with pytest.raises(OSError) as refused:  # noqa: PT011
            attempt(log)
        shown = errno.errorcode[refused.value.errno]
        assert shown == errno.errorcode[refusal.errno], f"attempt {number}"
    assert snapshot(log) == before
    assert "unexpected_error" not in log.pool.log_since_start()


def test_the_documented_table_is_the_tested_one() -> None:
    section = DOCUMENT.read_text().split("## Writes past the end")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"
    ]
    header, _, *documented = rows
    assert header == ["operation", "errno", "why", "instead"]
    names = {errno.EOPNOTSUPP: "EOPNOTSUPP"}  # errorcode calls it ENOTSUP, the same number
    tested = [(refusal.operation, names.get(refusal.errno, errno.errorcode[refusal.errno])) for refusal in REFUSALS]
    assert [(row[0], row[1]) for row in documented] == tested
    assert all(len(row) == 4 for row in documented)


def test_at_the_boundary_of_a_segment(log: Log) -> None:
    """The last byte can be written and read; what lies across the end is cut off, never written elsewhere."""
    writes_only = os.O_WRONLY if log.pool.passes_through else os.O_RDWR
    index = 3
    log.pool.make_segments([index, index + 1])
    fd = os.open(log.pool.path(index), os.O_RDWR)
    try:
        assert os.pwrite(fd, b"Z", MIB - 1) == 1
        assert os.pread(fd, 10, MIB - 5) == bytes(4) + b"Z"
        assert os.pread(fd, 10, MIB) == b""
        writer = os.open(log.pool.path(index), writes_only)
        try:
            assert os.pwrite(writer, b"YX", MIB - 1) == 1
        finally:
            os.close(writer)
        assert os.pread(fd, 10, MIB - 2) == b"\0Y"
        assert os.fstat(fd).st_size == MIB
    finally:
        os.close(fd)
    assert log.pool.path(index + 1).read_bytes()[:4096] == segment_bytes(index + 1, 4096)


def test_sparse_writes_into_a_new_segment_stay_inside_it(log: Log) -> None:
    path = log.pool.path(6)
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        assert os.pwrite(fd, b"middle", MIB // 2) == 6
        assert os.fstat(fd).st_size == MIB // 2 + 6
        os.posix_fallocate(fd, 0, MIB)
        assert os.fstat(fd).st_size == MIB
        assert os.pread(fd, 8, MIB // 2 - 1) == b"\0middle\0"
    finally:
        os.close(fd)
        path.unlink()


def test_appending_fills_a_new_segment_and_no_more(log: Log) -> None:
    path = log.pool.path(6)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        for _ in range(4):
            assert os.write(fd, b"a" * (MIB // 4)) == MIB // 4
        with pytest.raises(OSError) as refused:  # noqa: PT011
            os.write(fd, b"a")
        assert refused.value.errno == errno.EFBIG
    finally:
        os.close(fd)
    assert path.read_bytes() == b"a" * MIB
    path.unlink()


def test_the_largest_segment_of_all_can_be_made(log: Log) -> None:
    name = b"%020d" % (2**63 // MIB * MIB - 2 * MIB)
    fd = os.open(log.name(name), os.O_RDWR | os.O_CREAT, 0o644)
    os.ftruncate(fd, MIB)
    os.close(fd)
    assert name in os.listdir(log.root)
    os.unlink(log.name(name))
