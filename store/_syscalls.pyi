from collections.abc import Iterable

RESOLVE_BENEATH: int
RESOLVE_NO_SYMLINKS: int
RESOLVE_NO_MAGICLINKS: int
RESOLVE_NO_XDEV: int
FALLOC_FL_KEEP_SIZE: int
FALLOC_FL_PUNCH_HOLE: int
MCL_CURRENT: int
MCL_FUTURE: int
MCL_ONFAULT: int
PACKED_SIZE: int

def openat2(dirfd: int, path: bytes, flags: int, mode: int, resolve: int, /) -> int: ...
def fallocate(fd: int, mode: int, offset: int, length: int, /) -> None: ...
def mlockall(flags: int, /) -> None: ...
def stat_fd(fd: int, /) -> bytes: ...
def stat_names(dirfd: int, names: Iterable[bytes], /) -> list[bytes | int]: ...
def stat_changes(
    dirfd: int, names: Iterable[bytes], known: Iterable[bytes], /
) -> list[tuple[int, bytes | int]]: ...
