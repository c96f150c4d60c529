"""`mount.commitlogfs`, which mount(8) runs for fstab.

    NAME  /var/rocketmq/store/commitlog  commitlogfs  config=/etc/commitlogfs/NAME.toml  0 0

Exit statuses are mount(8)'s: 0, 1 wrong use, 32 failed.
"""

import sys
from pathlib import Path

from commitlogfs.console.errors import UserError
from commitlogfs.mount import cli
from commitlogfs.mount.config.model import Config, config_path, load_config
from commitlogfs.mount.linux import mountinfo
from commitlogfs.mount.location import control_client, runtime_directory

_USAGE_STATUS = 1
_FAILED_STATUS = 32

_HARMLESS = frozenset(
    {"rw", "defaults", "auto", "noauto", "user", "nouser", "users", "nofail", "_netdev", "owner", "group"}
    | {"nosuid", "nodev", "noexec", "noatime", "allow_other", "default_permissions"}
    | {"relatime", "strictatime", "lazytime", "nolazytime", "nodiratime", "diratime", "silent", "loud"}
)
"""Options that mount(8) passes on, that apply to this filesystem anyway, or that change nothing here, such as those
of access times: the mount is `noatime`."""


def main() -> int:
    try:
        return _mount(sys.argv[1:])
    except _HelperUsageError as error:
        print(f"mount.commitlogfs: {error}", file=sys.stderr)
        return _USAGE_STATUS
    except UserError as error:
        print(f"mount.commitlogfs: {error}", file=sys.stderr)
        return _FAILED_STATUS


class _HelperUsageError(Exception):
    pass


def _mount(arguments: list[str]) -> int:
    positional: list[str] = []
    options: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if argument == "-o":
            options += next(rest, "").split(",")
        elif argument.startswith("-o"):
            options += argument[2:].split(",")
        elif argument in ("-n", "-s", "-v"):
            continue
        elif argument in ("-t", "-N"):
            next(rest, "")
        elif argument.startswith("-"):
            raise _HelperUsageError(f"{argument}: unknown option")
        else:
            positional.append(argument)
    if len(positional) != 2:
        raise _HelperUsageError("usage: mount.commitlogfs NAME MOUNTPOINT [-o config=FILE]")
    source, mountpoint = positional
    chosen = str(config_path(_config_option(options) or source))
    config = load_config(chosen)
    if mountinfo.resolve_path(mountpoint) != mountinfo.resolve_path(config.mountpoint):
        raise _HelperUsageError(
            f"{mountpoint}: the mountpoint in {chosen} is {config.mountpoint}; "
            "make fstab and the configuration agree"
        )
    if _is_served(config):
        return 0
    status = cli.main(["mount", "--daemon", str(Path(chosen).absolute())])
    return _FAILED_STATUS if status else 0


def _is_served(config: Config) -> bool:
    """Whether the mount is there, and its daemon listens. `mount -a` knows mounts by their source, which is the
    NAME: if fstab gives the path of the configuration, it calls this program again."""
    entry = mountinfo.find_mount(config.mountpoint)
    is_there = entry is not None and mountinfo.is_commitlogfs(entry) and entry.source == config.name
    return is_there and control_client.is_listening(runtime_directory.socket_path(config.name))


def _config_option(options: list[str]) -> str | None:
    config = None
    for option in options:
        key, _, value = option.partition("=")
        if option == "ro":
            raise _HelperUsageError(
                "option 'ro': a read-only mount is not supported; readers join the group of the mounted directory, "
                "or read the segments on the disks while nothing is mounted"
            )
        if key == "config" and value:
            config = value
        elif option and option not in _HARMLESS and not key.startswith(("x-", "X-", "comment")):
            raise _HelperUsageError(f"option {option!r}: unknown; set options in the configuration file")
    return config


if __name__ == "__main__":
    sys.exit(main())
