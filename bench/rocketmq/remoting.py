"""The part of RocketMQ's wire protocol that checks whether a server answers."""

import json
import socket
import struct

GET_ALL_TOPIC_CONFIG = 21
GET_BROKER_RUNTIME_INFO = 28
GET_BROKER_CLUSTER_INFO = 106


def request(port: int, code: int, timeout_s: float = 2.0, host: str = "127.0.0.1") -> bytes:
    """Body of the answer to a request without arguments; OSError when there is none or it reports a failure.

    Frame: total length 4, header length 4 (top byte 0: JSON), header, body.
    """
    fields = {"code": code, "language": "OTHER", "version": 0, "opaque": 1, "flag": 0}
    header = json.dumps(fields).encode()
    with socket.create_connection((host, port), timeout=timeout_s) as connection:
        connection.sendall(struct.pack(">II", 4 + len(header), len(header)) + header)
        with connection.makefile("rb") as stream:
            (total,) = struct.unpack(">I", _read(stream.read(4), 4))
            frame = _read(stream.read(total), total)
    header_length = struct.unpack(">I", frame[:4])[0] & 0xFFFFFF
    answer = json.loads(frame[4 : 4 + header_length])
    if answer["code"] != 0:
        raise OSError(f"port {port} answered code {answer['code']}: {answer.get('remark')}")
    return frame[4 + header_length :]


def _read(data: bytes, length: int) -> bytes:
    if len(data) < length:
        raise ConnectionError("connection closed inside an answer")
    return data
