"""Errors about the state that a former daemon has left in the descriptor store."""


class KeptStateError(Exception):
    """The kept state cannot be used; one line that says why."""


class CorruptStateError(KeptStateError):
    """It is damaged, or none of ours."""


class UnknownLayoutError(KeptStateError):
    """Another version of commitlogfs has written it; nothing was changed, that version can go on with it."""
