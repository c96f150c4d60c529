"""RocketMQ's own client in a JVM, which py4j drives: the only part that knows the target cluster.

The client is the user's: a directory with its jars. So the replay speaks the protocol of the cluster's version, and
no code of ours runs in the JVM.
"""

import itertools
import os
import shutil
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JError, Py4JJavaError

from commitlogfs.console.errors import RefusedError, UnreachableError
from commitlogfs.pipeline.log.errors import PipelineError
from commitlogfs.pipeline.replay.credentials import Credentials
from commitlogfs.pipeline.replay.records import log_offset
from commitlogfs.store.clock import SYSTEM_CLOCK, Clock

_Result = TypeVar("_Result")

GROUP: Final = "commitlogfs-replay"
SEND_TIMEOUT_MS: Final = 10_000
RETRY_FOR_S: Final = 60.0
"""How long one batch is tried: brokers restart, and refuse for a while when they are busy."""
_LOOKUP_FOR_S: Final = 10.0
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 5.0
_LARGEST_MESSAGE: Final = 1 << 30
"""The client has a limit besides the broker's; the broker's decides."""
TOPIC_NOT_EXIST: Final = 17
NO_PERMISSION: Final = 16
_USELESS: Final = frozenset({13, NO_PERMISSION})
"""Codes (ResponseCode) that another attempt does not change. 13: MESSAGE_ILLEGAL."""
_NO_PERMISSION_HINT: Final = "; check the access key of --credentials, and what it and the topic permit"
_INVALID: Final = "Failed to initiate the MessageBatch"
"""How the client begins when it does not send a batch at all (DefaultMQProducer#batch)."""
_STORED: Final = frozenset({"SEND_OK", "FLUSH_DISK_TIMEOUT", "FLUSH_SLAVE_TIMEOUT", "SLAVE_NOT_AVAILABLE"})
"""Results (SendStatus) of a message that the broker has. All but the first: on fewer disks than required."""
_PACKAGE: Final = "org.apache.rocketmq"
_LONGEST_CHAIN: Final = 10
_JVM: Final = ("-Xmx512m", "-XX:-UsePerfData", "-Drocketmq.client.logUseSlf4j=true")
_STOP_S: Final = 10.0


class TargetError(PipelineError):
    """The target cluster does not take a message."""


class _TopicMissingError(TargetError):
    """The target cluster has no such topic."""


class Client:
    """A producer; a context manager. Its methods may be called from several threads, with a queue in one at a time.

    Raises UnreachableError if the JVM or the client does not start.
    """

    def __init__(
        self,
        name_server: str,
        jars: Path,
        credentials: Credentials | None = None,
        *,
        retry_for_s: float = RETRY_FOR_S,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._name_server, self._jars, self._retry_for_s = name_server, jars, retry_for_s
        self._credentials, self._clock = credentials, clock
        self._queues: dict[str, dict[str, Any]] = {}
        """By topic, the queues by name."""
        self._count_lock = threading.Lock()
        self.repeated = 0
        """Batches that were sent again after an error: some of their messages may be there twice."""
        self.weak = 0
        """Batches that the broker has, but not on as many disks as its configuration requires."""
        self._given_up = threading.Event()
        self._stack = ExitStack()
        self._errors: deque[str] = deque(maxlen=50)

    def __enter__(self) -> Self:
        java = find_java()
        with ExitStack() as stack:
            # The client would write logs into the user's home directory.
            home = stack.enter_context(tempfile.TemporaryDirectory(prefix="commitlogfs-replay-"))
            try:
                port, token, process = launch_gateway(
                    classpath=f"{self._jars}/*",
                    javaopts=[*_JVM, f"-Duser.home={home}"],
                    die_on_exit=True,
                    redirect_stderr=self._errors,
                    java_path=java,
                    create_new_process_group=True,
                    enable_auth=True,
                    return_proc=True,
                )
            except (OSError, ValueError, Py4JError):
                raise UnreachableError(f"{java}: does not start a JVM{self._last_error()}") from None
            stack.callback(_end, process)
            self._gateway = JavaGateway(
                gateway_parameters=GatewayParameters(port=port, auth_token=token, auto_convert=True)
            )
            stack.callback(self._gateway.shutdown, raise_exception=False)
            self._start_producer()
            stack.callback(self._quietly, lambda: self._producer.shutdown())
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def queue_names(self, topic: str) -> list[str]:
        """The queues of a topic, as BROKER:NUMBER, in the order in which `send` counts them. Raises RefusedError if
        the topic does not exist in the target cluster, UnreachableError."""
        return list(self._find_queues(topic))

    def send(self, topic: str, queue: int, records: Sequence[bytes]) -> None:
        """Send messages, as one batch, to the queue of this number modulo their count. They are stored when it
        returns. Raises TargetError when the cluster does not take them for some time, RefusedError."""
        queues = list(self._find_queues(topic).values())
        chosen = queues[queue % len(queues)]
        places = f"topic {topic}, log offsets {log_offset(records[0])} to {log_offset(records[-1])}"
        attempts = self._call(lambda: self._send_once(chosen, records), places, self._retry_for_s)[1]
        with self._count_lock:
            self.repeated += attempts - 1

    def give_up(self) -> None:
        """End the calls under way soon, with their errors, instead of trying again."""
        self._given_up.set()

    def _start_producer(self) -> None:
        try:
            java: Any = self._gateway.jvm
            self._wrap: Any = java.java.nio.ByteBuffer.wrap
            self._decode: Any = java.org.apache.rocketmq.common.message.MessageDecoder.decodes
            hooks = [] if self._credentials is None else [self._make_hook(java, self._credentials)]
            producer = java.org.apache.rocketmq.client.producer.DefaultMQProducer(GROUP, *hooks)
            producer.setNamesrvAddr(self._name_server)
            producer.setInstanceName(f"replay-{os.getpid()}")
            producer.setMaxMessageSize(_LARGEST_MESSAGE)
            producer.setSendMsgTimeout(SEND_TIMEOUT_MS)
            producer.start()
        except (Py4JError, TypeError) as error:
            raise UnreachableError(f"{self._jars}: RocketMQ's client does not start ({_reason(error)})") from None
        self._producer: Any = producer

    def _make_hook(self, java: Any, credentials: Credentials) -> Any:
        """RocketMQ's own signer of requests."""
        package = java.org.apache.rocketmq.acl.common
        try:
            keys = package.SessionCredentials(credentials.access_key, credentials.secret_key)
            return package.AclClientRPCHook(keys)
        except TypeError:  # py4j has no such class
            raise UnreachableError(
                f"{self._jars}: cannot sign requests; add rocketmq-acl*.jar of the same version"
            ) from None

    def _find_queues(self, topic: str) -> dict[str, Any]:
        if topic not in self._queues:
            try:
                self._queues[topic], _ = self._call(
                    lambda: self._ask_queues(topic), self._name_server, _LOOKUP_FOR_S
                )
            except _TopicMissingError as error:
                raise RefusedError(
                    f"topic {topic}: is not found in the target cluster ({error}); create it there"
                ) from None
            except TargetError as error:
                raise UnreachableError(f"{error}; check the address of --to") from None
        return self._queues[topic]

    def _ask_queues(self, topic: str) -> dict[str, Any]:
        found = self._producer.fetchPublishMessageQueues(topic)
        by_place = {(queue.getBrokerName(), queue.getQueueId()): queue for queue in found}
        return {f"{broker}:{number}": by_place[broker, number] for broker, number in sorted(by_place)}

    def _send_once(self, queue: Any, records: Sequence[bytes]) -> None:
        messages = self._decode(self._wrap(b"".join(records)), True)
        if messages.size() != len(records):
            raise TargetError("the client does not understand a message; use a newer client")
        # A batch is never compressed, and has no light queues: one message goes as itself.
        sent = messages.get(0) if len(records) == 1 else messages
        status = self._producer.send(sent, queue, SEND_TIMEOUT_MS).getSendStatus().toString()
        if status not in _STORED:
            raise TargetError(f"the broker answers {status}")
        if status != "SEND_OK":
            with self._count_lock:
                self.weak += 1

    def _call(self, call: Callable[[], _Result], what: str, retry_for_s: float) -> tuple[_Result, int]:
        """The result, and the number of attempts."""
        deadline, pause_s = self._clock.monotonic() + retry_for_s, _FIRST_PAUSE_S
        for attempt in itertools.count(1):
            try:
                return call(), attempt
            except Py4JJavaError as error:
                codes = _codes(error)
                if TOPIC_NOT_EXIST in codes:
                    raise _TopicMissingError(f"{what}: {_reason(error)}") from None
                is_late = self._clock.monotonic() + pause_s > deadline
                is_over = codes & _USELESS or _is_invalid(error) or is_late
                if is_over or self._given_up.wait(pause_s):
                    hint = _NO_PERMISSION_HINT if NO_PERMISSION in codes else ""
                    raise TargetError(f"{what}: {_reason(error)}{hint}") from None
            except Py4JError:  # no answer of the client
                raise TargetError(f"{what}: the JVM of RocketMQ's client has ended{self._last_error()}") from None
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        raise AssertionError("unreachable")

    def _quietly(self, call: Callable[[], object]) -> None:
        with suppress(Py4JError):
            call()

    def _last_error(self) -> str:
        return f": {self._errors[0].strip()}" if self._errors else ""


def find_java() -> str:
    """Path of the JVM: that of JAVA_HOME, or of PATH. Raises UnreachableError."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    if found is None:
        raise UnreachableError("java: is not on PATH; install a JRE, or set JAVA_HOME")
    return found


def find_jars(given: Path | None) -> Path:
    """Directory of the client's jars: the given one, or that of ROCKETMQ_HOME. Raises UnreachableError."""
    home = os.environ.get("ROCKETMQ_HOME")
    if given is None and not home:
        raise UnreachableError("RocketMQ's client: is not known; name its directory of jars with --client")
    found = given if given is not None else Path(home or "", "lib")
    if not any(found.glob("rocketmq-client*.jar")):
        raise UnreachableError(f"{found}: has no rocketmq-client*.jar; name RocketMQ's lib with --client")
    return found


def _end(process: "subprocess.Popen[bytes]") -> None:
    """The JVM ends when its standard input does."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _chain(error: Py4JJavaError) -> list[Any]:
    """The exception and its causes, the innermost last."""
    chain = [error.java_exception]
    while len(chain) < _LONGEST_CHAIN and (cause := chain[-1].getCause()) is not None:
        chain.append(cause)
    return chain


def _codes(error: Py4JJavaError) -> set[int]:
    """The response codes of the client's exceptions."""
    codes = set()
    for exception in _chain(error):
        if exception.getClass().getName().startswith(_PACKAGE):
            with suppress(Py4JError):  # not all kinds have one
                codes.add(int(exception.getResponseCode()))
    return codes


def _is_invalid(error: Py4JJavaError) -> bool:
    return str(error.java_exception.getMessage() or "").startswith(_INVALID)


def _reason(error: Exception) -> str:
    """The first line of the innermost cause: the others only wrap it."""
    if not isinstance(error, Py4JJavaError):
        return str(error).partition("\n")[0] or type(error).__name__
    exception = _chain(error)[-1]
    kind = exception.getClass().getName().rpartition(".")[2]
    line = next(iter(str(exception.getMessage() or "").strip().splitlines()), "")
    return f"{kind}: {line}" if line else kind
