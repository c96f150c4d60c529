"""Child process that checks the disks of a pool: a disk that hangs holds this process, not the daemon.

    python -P -m commitlogfs.store.checks.check_process DESCRIPTOR...

Each DESCRIPTOR is a disk's directory. A thread for each disk carries out the requests that come by standard input,
one JSON object on a line: {"disk": DESCRIPTOR, "names": [...], "write": true}. On standard output it says at each
stage what it waits for, {"disk": ..., "thread": ID, "stage": "reading"}, and then what the disk has answered:
{"disk": ..., "read": ...}, with the fields of DiskCheck.

It also looks where a path leads, {"look": PATH}, in a thread for each path. The answer is {"look": PATH, "place":
...}, with the fields of Place, or null if the path cannot be opened or its identity cannot be read.

The process ends with its input.
"""

import json
import os
import sys
import threading
from dataclasses import asdict
from queue import SimpleQueue
from typing import Any

from commitlogfs.store.checks.check import Stage, check_disk
from commitlogfs.store.checks.place import look
from commitlogfs.store.errors import PoolError


def _serve(dirfd: int, requests: "SimpleQueue[dict[str, Any]]") -> None:
    thread = threading.get_native_id()

    def announce(stage: Stage) -> None:
        _say({"disk": dirfd, "thread": thread, "stage": stage.value})

    while True:
        request = requests.get()
        names = [str(name).encode() for name in request["names"]]
        _say({"disk": dirfd, **asdict(check_disk(dirfd, names, may_write=request["write"], announce=announce))})


def _look(paths: "SimpleQueue[str]") -> None:
    while True:
        path = paths.get()
        try:
            found = asdict(look(path))
        except (OSError, PoolError):
            found = None
        _say({"look": path, "place": found})


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
    paths: dict[str, SimpleQueue[str]] = {}
    for line in sys.stdin:
        request = json.loads(line)
        if "look" not in request:
            queues[request["disk"]].put(request)
            continue
        path = str(request["look"])
        if path not in paths:
            paths[path] = SimpleQueue()
            threading.Thread(target=_look, args=(paths[path],), daemon=True).start()
        paths[path].put(path)
    os._exit(0)  # without waiting for a thread that hangs


if __name__ == "__main__":
    main()
