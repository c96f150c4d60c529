"""Acting as another user for the length of one call."""

import errno
import os
from collections.abc import Callable, Sequence


def as_user(uid: int, work: Callable[[], object], groups: Sequence[int] = ()) -> str:
    """Do something as an unprivileged user in a child process; the name of the errno it met, "" for none."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        outcome = "?"
        try:
            os.setgroups(groups)
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            work()
            outcome = ""
        except OSError as error:
            outcome = errno.errorcode.get(error.errno or 0, "?")
        finally:
            os.write(writing, outcome.encode())
            os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        outcome = pipe.read()
    os.waitpid(pid, 0)
    return outcome
