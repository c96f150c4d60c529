"""Which mount to show: a running one, or one that a configuration names and no daemon serves."""

from commitlogfs.console import settings
from commitlogfs.console.errors import UnreachableError, UsageError
from commitlogfs.mount.location.which_mount import Target, configuration_file, find_target


def find(which: str | None) -> tuple[Target, str]:
    """The mount meant by `[NAME|FILE|MOUNTPOINT]`, and the NAME or FILE of its configuration.

    Without one, it is the only running mount, else that of the only configuration. Raises as `find_target`.
    """
    which = settings.or_default(which)
    try:
        target = find_target(which, of_others=True)
    except UnreachableError:
        try:
            file = configuration_file(which)
        except UsageError:
            file = None
        if file is None:
            raise
        return Target(file.stem), str(file)
    return target, which if which is not None and which.endswith(".toml") else target.name
