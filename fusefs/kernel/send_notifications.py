"""Sends notifications to the kernel: a program of its own, with nothing but the standard library.

    send_notifications.py DEVICE_FD < MESSAGES

MESSAGES are as the kernel takes them, one after the other; each begins with its length. What the kernel does not
know (ENOENT) needs no notification, and after an unmount (ENODEV, ENOTCONN) none does. Other errors are told, one
per line.
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
