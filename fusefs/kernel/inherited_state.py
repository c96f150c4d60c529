"""Errors about the state that a former daemon has left in the descriptor store."""


class InheritedStateError(Exception):
    """The state cannot be used; one line that says why, and one that says what to do."""

    remedy = "install the version that it was mounted by, or stop the broker, unmount and mount again"

    def __init__(self, reason: str, remedy: str = remedy) -> None:
        super().__init__(reason)
        self.remedy = remedy


class CorruptStateError(InheritedStateError):
    """It is damaged, or commitlogfs has not written it."""


class UnknownLayoutError(InheritedStateError):
    """Another version of commitlogfs has written it. Nothing was changed: that version can take the mount over."""
