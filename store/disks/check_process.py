"""Child process that checks the disks of a pool: a disk that hangs holds this process, not the daemon.

    python -P -m commitlogfs.store.disks.check_process DESCRIPTOR...

Each DESCRIPTOR is a disk's directory. A thread for each disk carries out the requests that come by standard input,
one JSON object on a line: {"disk": DESCRIPTOR, "names": [...], "write": true}. On standard output it says at each
stage what it waits for, {"disk": ..., "thread": ID, "stage": "reading"}, and then what the disk has answered:
{"disk": ..., "read": ...}, with the fields of DiskCheck. The process ends with its input.
"""

import json
import os
import sys
import threading
from dataclasses import asdict
from queue import SimpleQueue
from typing import Any

from commitlogfs.store.disks.check import Stage, check_disk


def _serve(dirfd: int, requests: "SimpleQueue[dict[str, Any]]") -> None:
    thread = threading.get_native_id()

    def announce(stage: Stage) -> None:
        _say({"disk": dirfd, "thread": thread, "stage": stage.value})

    while True:
        request = requests.get()
        names = [str(name).encode() for name in request["names"]]
        _say({"disk": dirfd, **asdict(check_disk(dirfd, names, may_write=request["write"], announce=announce))})


def _say(message: dict[str, Any]) -> None:
    try:
        os.write(1, json.dumps(message).encode() + b"\n")  # at once: shorter than what a pipe keeps together
    except OSError:
        os._exit(0)  # the daemon has gone


def main() -> None:
    """Serve until the input ends."""
    queues: dict[int, SimpleQueue[dict[str, Any]]] = {int(text): SimpleQueue() for text in sys.argv[1:]}
    for dirfd, queue in queues.items():
        threading.Thread(target=_serve, args=(dirfd, queue), daemon=True).start()
    for line in sys.stdin:
        request = json.loads(line)
        queues[request["disk"]].put(request)
    os._exit(0)  # without waiting for a thread that hangs


if __name__ == "__main__":
    main()
