"""An S3-compatible server on loopback (moto, from PyPI), with nothing in it and nothing kept."""

import importlib.util
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.waiting import eventually

from commitlogfs.bench.rocketmq.ports import ReservedPort

HOST = "127.0.0.1"


def lack() -> str:
    """Why there is none; "" if there is."""
    return "" if importlib.util.find_spec("moto") and importlib.util.find_spec("flask_cors") else "no moto[s3]"


@contextmanager
def s3_server(directory: Path) -> Iterator[str]:
    """Its HOST:PORT."""
    reserved = ReservedPort()
    port = reserved.number
    with (directory / "s3.log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", HOST, "-p", str(port)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "MOTO_CALL_RESET_API": "false"},
        )
    try:

        def answers() -> bool:
            assert server.poll() is None, (directory / "s3.log").read_text()
            with socket.socket() as probe:
                return probe.connect_ex((HOST, port)) == 0

        eventually(answers)
        yield f"{HOST}:{port}"
    finally:
        server.terminate()
        server.wait()


def bucket_of(endpoint: str) -> Any:
    """pyarrow's filesystem of the server."""
    from pyarrow import fs

    return fs.S3FileSystem(
        access_key="key",
        secret_key="secret",  # noqa: S106 - moto's
        region="us-east-1",
        scheme="http",
        endpoint_override=endpoint,
        allow_bucket_creation=True,
    )


def store(endpoint: str, bucket: str, path: str, directory: Path) -> str:
    """Copy the files of a directory to a path of a bucket, which is made if absent; the URI of the copy."""
    server = bucket_of(endpoint)
    server.create_dir(bucket)
    for file in directory.iterdir():
        with server.open_output_stream(f"{bucket}/{path}/{file.name}") as stream:
            stream.write(file.read_bytes())
    return uri(endpoint, bucket, path)


def uri(endpoint: str, bucket: str, path: str = "") -> str:
    """URI as a user writes it, with credentials, which moto ignores."""
    query = f"scheme=http&endpoint_override={endpoint.replace(':', '%3A')}&region=us-east-1"
    return f"s3://key:secret@{bucket}/{path}?{query}"
