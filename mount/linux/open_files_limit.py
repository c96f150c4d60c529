"""Limit of open files of the daemon."""

import resource


def raise_descriptor_limit() -> int:
    """Raise this process's soft limit of open files to its hard limit, and return it.

    In plain mode the daemon has one descriptor for every segment that is open in the mount, and a broker opens all
    of them: 60,000 for 60 TB. With the usual soft limit of 1024 a broker's start would fail with EMFILE.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
