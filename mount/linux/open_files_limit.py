"""How many files the daemon may have open."""

import resource


def raise_descriptor_limit() -> int:
    """Raise this process's soft limit of open files to its hard limit; the limit that holds now.

    In plain mode the daemon holds one descriptor for every segment that somebody has open, and a broker opens all
    of them: 60,000 for 60 TB. The usual soft limit of 1024 would end a broker's start with EMFILE.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
