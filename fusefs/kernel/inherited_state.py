"""Errors about the state that a former daemon has left in the descriptor store."""


class InheritedStateError(Exception):
    """The state cannot be used; one line that says why."""


class CorruptStateError(InheritedStateError):
    """It is damaged, or commitlogfs has not written it."""


class UnknownLayoutError(InheritedStateError):
    """Another version of commitlogfs has written it. Nothing was changed: that version can take the mount over."""
