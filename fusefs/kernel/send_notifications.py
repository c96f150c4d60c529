"""Sends notifications to the kernel: a program of its own that uses only the standard library.

    send_notifications.py DEVICE_FD < MESSAGES

MESSAGES have the kernel's format, one after the other; each begins with its length. A name that the kernel does not
know (ENOENT) needs no notification, and none is needed after an unmount (ENODEV, ENOTCONN). Other errors go to
standard error, one on each line.
"""

import errno
import os
import struct
import sys

_LENGTH = struct.Struct("=I")
_NEEDLESS = (errno.ENOENT, errno.ENODEV, errno.ENOTCONN)


def main(device: int, messages: bytes) -> None:
    while messages:
        (length,) = _LENGTH.unpack_from(messages)
        try:
            os.write(device, messages[:length])
        except OSError as error:
            if error.errno not in _NEEDLESS:
                print(error.strerror, file=sys.stderr)
        messages = messages[length:]


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.stdin.buffer.read())
