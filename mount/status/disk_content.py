"""Reasons why a disk stays in the pool, for `disk remove` and `disk safe-to-remove`. Each one follows the path of
the disk."""

from commitlogfs.console.formatting import count_of, local_minute


def describe_held(count: int, until: float | None) -> str:
    """For moved segments of which processes have the former files open. `until`: seconds since 1970, if known."""
    date = "" if until is None else f", about {local_minute(until)}"
    them = "it" if count == 1 else "them"
    return f"{count_of(count, 'moved segment')} still open, until the broker restarts or deletes {them}{date}"


def describe_arriving(name: str, *, takes_segments: bool) -> str:
    """`takes_segments`: whether more may come after this one."""
    remedy = "cordon it, and repeat the command" if takes_segments else "repeat the command"
    return f"{name} is being copied to it; {remedy}"


def describe_left_behind(count: int) -> str:
    """For the files that the drain of a failing disk leaves there."""
    return (
        f"holds no segment of the log, but former files that could not be read or removed completely ({count:,}); "
        "`commitlogfs disk remove --lost` takes it out of the pool with them"
    )


def describe_unwritable() -> str:
    """For a disk on which the log has nothing."""
    return (
        "holds nothing of the log, but cannot be written, so it is not certain that it is empty; repair it, or "
        "take it out of the pool as it is: `commitlogfs disk remove --lost`"
    )


def describe_foreign(entry: str) -> str:
    """For a file, or a directory, that is not of the pool."""
    return f"holds no segment of the log, but {entry!r}; move that away first"
