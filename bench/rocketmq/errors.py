"""One class per cause; each message is one line, followed by the tail of a log where there is one."""


class RocketmqError(Exception):
    """Base class of all errors that this driver raises on purpose."""


class ArtifactsUnavailableError(RocketmqError):
    """java, javac or mvn is missing, the download failed, or the helper does not compile."""


class StartFailedError(RocketmqError):
    """A server exited, or did not answer before its deadline."""


class StopTimeoutError(RocketmqError):
    """A process did not end after a signal; after SIGKILL it hangs in the kernel, for example on a dead mount."""


class WorkloadFailedError(RocketmqError):
    """A client ran, but did not do everything that was requested."""
