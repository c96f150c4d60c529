"""Forged requests: bogus inodes, handles, names, offsets. Every handler answers or raises FUSEError, nothing else.

No kernel between, so that what no kernel would send arrives too.
"""

import errno
import logging
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pyfuse3
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from pyfuse3 import EntryAttributes, FUSEError
from support.pooled import PATIENT
from support.request_fields import CONTEXT, ChangedFields

from commitlogfs.fusefs.assembly import Parts
from commitlogfs.fusefs.files.control_files import ControlContents
from commitlogfs.fusefs.kernel import inodes
from commitlogfs.fusefs.kernel.link import FuseLink
from commitlogfs.fusefs.operations import CommitLogOperations
from commitlogfs.mount.metrics.counts import Counts
from commitlogfs.store.disks.directories import DiskSpec
from commitlogfs.store.disks.identity import RootAttributes
from commitlogfs.store.placement import POLICIES
from commitlogfs.store.pool import birth
from commitlogfs.store.pool.commitlog import CommitLog
from commitlogfs.store.pool.open import open_pool
from commitlogfs.store.retention import RetentionRules
from commitlogfs.store.scrub.schedule import ScrubRules
from commitlogfs.store.segment import format_segment_name, parse_segment_name, parse_temporary_name
from commitlogfs.store.thresholds import Thresholds

SIZE = 4096
SEGMENTS = 3

Call = Callable[[CommitLogOperations], Awaitable[object]]


class Served(NamedTuple):
    operations: CommitLogOperations
    directories: list[Path]


async def _nothing() -> bytes:
    return b"{}"


@pytest.fixture(scope="module")
def served(base_directory: Path) -> Iterator[Served]:
    directories = [base_directory / f"fuzz{number}" for number in range(2)]
    specs = tuple(DiskSpec(str(directory), Thresholds()) for directory in directories)
    with ExitStack() as stack:
        plan = birth.plan_init(specs, SIZE, RootAttributes(0o755, 0, 0), stack)
        birth.execute(plan, specs, stack)
    for index in range(SEGMENTS):
        (directories[index % 2] / format_segment_name(index * SIZE).decode()).write_bytes(bytes([index]) * SIZE)
    log = CommitLog(open_pool(specs, None), POLICIES["round-robin"], timing=PATIENT)
    contents = ControlContents(_nothing, _nothing)
    parts = Parts(log, RetentionRules(), ScrubRules(), Counts(CollectorRegistry(), "fuzz"), FuseLink())
    yield Served(CommitLogOperations(parts, contents), directories)
    parts.close()
    log.close()


# --- what a hostile kernel could say -----------------------------------------------------------------

numbers = st.one_of(
    st.integers(0, 8),
    st.integers(-(2**63), 2**64 - 1),
    st.builds(lambda disk, ino: disk << 48 | ino, st.integers(0, 3), st.integers(0, 2**48 - 1)),
    st.sampled_from([0, 1, -1, 2**31, 2**48 - 1, 2**48, 2**63 - 1, 2**63, 2**64 - 1]),
)
known = st.integers(0, SEGMENTS - 1).map(lambda index: ("segment", index))
inode_like = st.one_of(numbers, known)
"""A number, or a segment of the log, whose inode only the fixture knows."""
segment_names = st.one_of(
    st.integers(0, 12).map(lambda index: format_segment_name(index * SIZE)),
    st.integers(0, 2**64).map(lambda offset: b"%020d" % offset),
)
names = st.one_of(
    segment_names,
    segment_names.map(lambda name: b"." + name + b".x"),
    st.binary(max_size=300),
    st.sampled_from([b"", b".", b"..", b"/", b".commitlogfs", b"lost+found", b"a/../b", b"x" * 256, b"\0", b"\n"]),
)
offsets = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-2 * SIZE, SEGMENTS * SIZE * 2))
lengths = st.one_of(st.integers(0, 3 * SIZE), st.integers(-1, 2**63 - 1))
flags = st.one_of(st.integers(0, 2**31 - 1), st.sampled_from([os.O_RDONLY, os.O_RDWR, os.O_RDWR | os.O_CREAT]))
modes = st.integers(0, 2**32 - 1)


@st.composite
def new_attributes(draw: st.DrawFn) -> EntryAttributes:
    attributes = EntryAttributes()
    attributes.st_size = draw(st.one_of(st.just(SIZE), st.integers(0, 2**63 - 1)))
    attributes.st_mode = draw(st.integers(0, 2**16 - 1))
    attributes.st_uid = draw(st.integers(0, 2**32 - 1))
    attributes.st_gid = draw(st.integers(0, 2**32 - 1))
    attributes.st_atime_ns = draw(st.integers(-(2**62), 2**62))
    attributes.st_mtime_ns = draw(st.integers(-(2**62), 2**62))
    return attributes


class Request(NamedTuple):
    op: str
    arguments: tuple[Any, ...]


def request(op: str, *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Request]:
    return st.tuples(*arguments).map(lambda given_arguments: Request(op, given_arguments))


ctx = st.just(CONTEXT)
fields = st.builds(ChangedFields, *[st.booleans()] * 6)
requests = st.one_of(
    request("lookup", inode_like, names, ctx),
    request("getattr", inode_like, ctx),
    request("setattr", inode_like, new_attributes(), fields, st.one_of(st.none(), numbers), ctx),
    request("access", inode_like, modes, ctx),
    request("create", st.one_of(st.just(1), inode_like), names, modes, flags, ctx),
    request("unlink", st.one_of(st.just(1), inode_like), names, ctx),
    request("rename", st.sampled_from([1, 1, 2]), names, st.sampled_from([1, 1, 9]), names, st.integers(0, 7), ctx),
    request("mkdir", inode_like, names, modes, ctx),
    request("rmdir", inode_like, names, ctx),
    request("symlink", inode_like, names, names, ctx),
    request("link", inode_like, inode_like, names, ctx),
    request("mknod", inode_like, names, modes, numbers, ctx),
    request("readlink", inode_like, ctx),
    request("open", inode_like, flags, ctx),
    request("read", inode_like, offsets, lengths),
    request("write", inode_like, offsets, st.binary(max_size=SIZE + 10)),
    request("flush", inode_like),
    request("fsync", inode_like, st.booleans()),
    request("release", inode_like),
    request("opendir", inode_like, ctx),
    request("releasedir", inode_like),
    request("fsyncdir", inode_like, st.booleans()),
    request("statfs", ctx),
    request("getxattr", inode_like, st.one_of(names, st.just(b"user.commitlogfs.state")), ctx),
    request("listxattr", inode_like, ctx),
    request("setxattr", inode_like, names, st.binary(), ctx),
    request("removexattr", inode_like, names, ctx),
    request("forget", st.lists(st.tuples(numbers, numbers), max_size=3)),
)


def _resolve(served: Served, argument: Any) -> Any:
    if isinstance(argument, tuple) and argument[:1] == ("segment",):
        segment = served.operations.commitlog.catalog.get(argument[1] * SIZE)
        return inodes.encode(segment) if segment is not None else 12345
    return argument


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(requests, min_size=1, max_size=12))
def test_only_fuse_errors_leave_a_handler(served: Served, sequence: list[Request]) -> None:
    require_only_fuse_errors(served, sequence)


@pytest.mark.full
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(requests, min_size=1, max_size=12))
def test_only_fuse_errors_leave_a_handler_in_many_sequences(served: Served, sequence: list[Request]) -> None:
    require_only_fuse_errors(served, sequence)


def require_only_fuse_errors(served: Served, sequence: list[Request]) -> None:
    """And nothing but files of the log, no larger than a segment, is on the disks afterwards."""
    logging.disable(logging.CRITICAL)  # thousands of refusals
    try:
        trio.run(_play, served, sequence)
    finally:
        logging.disable(logging.NOTSET)
    for directory in served.directories:
        for name in os.listdir(os.fsencode(directory)):
            assert (
                name == b".commitlogfs"
                or parse_segment_name(name, SIZE) is not None
                or parse_temporary_name(name, SIZE) is not None
            ), name
            assert (directory / os.fsdecode(name)).stat().st_size <= SIZE or name == b".commitlogfs"


async def _play(served: Served, sequence: list[Request]) -> None:
    for op, arguments in sequence:
        arguments = tuple(_resolve(served, argument) for argument in arguments)
        try:
            await getattr(served.operations, op)(*arguments)
        except FUSEError as error:
            assert error.errno in errno.errorcode, (op, arguments, error.errno)  # noqa: PT017


def test_it_still_serves_after_all_that(served: Served) -> None:
    async def main() -> None:
        name = format_segment_name(100 * SIZE)
        info, _ = await served.operations.create(pyfuse3.ROOT_INODE, name, 0o644, os.O_RDWR, CONTEXT)
        assert await served.operations.write(info.fh, 0, b"alive") == 5
        assert (await served.operations.read(info.fh, 0, 5)) == b"alive"
        await served.operations.release(info.fh)
        await served.operations.unlink(pyfuse3.ROOT_INODE, name, CONTEXT)
        assert (await served.operations.lookup(pyfuse3.ROOT_INODE, b".commitlogfs", CONTEXT)).st_ino == 2

    trio.run(main)
