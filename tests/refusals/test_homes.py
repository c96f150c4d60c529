"""A user whose $HOME is another user's, a file, relative or missing, as under cron, setpriv or in a container."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.command_line import LOAD_VERB, Ran
from support.waiting import PATIENCE_S

pytestmark = pytest.mark.root

NOBODY = 65534
UNKNOWN = 54_321
"""In no user database."""

# All is loaded before the change of user, who need not be able to read the installation.
_AS_USER = f"""{LOAD_VERB}
import os, sys
from pathlib import Path
from commitlogfs.mount.config import model
load_verb(sys.argv[3])
model.SYSTEM_DIRECTORY, uid = Path(sys.argv[1]), int(sys.argv[2])
os.setgroups([]); os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid)
sys.exit(cli.main(sys.argv[3:]))
"""
# Without the mounts of others, which `status` would show.
_ALONE = (
    *("unshare", "--mount", "--propagation", "private", "sh", "-c"),
    'while read -r _ place type _; do [ "$type" != fuse.commitlogfs ] || umount -l "$place"; done </proc/mounts; '
    'exec "$@"',
    "sh",
)
_TOML = 'mountpoint = "/mnt/x"\n[[disks]]\npath = "/mnt/disk"\n'

Run = Callable[..., Ran]


@pytest.fixture
def etc(workdir: Path) -> Path:
    """/etc/commitlogfs with one configuration, broker."""
    directory = workdir / "etc"
    directory.mkdir()
    (directory / "broker.toml").write_text(_TOML)
    return directory


@pytest.fixture
def run(workdir: Path, etc: Path) -> Run:
    """`commitlogfs ARGUMENTS` as a user without privileges; `home` None: without $HOME."""

    def run(*arguments: str, home: str | None, uid: int = NOBODY) -> Ran:
        environment = {key: os.environ[key] for key in ("PATH", "LANG") if key in os.environ}
        if home is not None:
            environment["HOME"] = home
        done = subprocess.run(
            [*_ALONE, sys.executable, "-c", _AS_USER, str(etc), str(uid), *arguments],
            capture_output=True,
            text=True,
            env=environment,
            cwd=workdir,
            timeout=PATIENCE_S,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        assert done.returncode == 0 or done.stderr.count("\n") == 1 or arguments[0] == "doctor", done.stderr
        return Ran(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def homes(workdir: Path) -> dict[str, tuple[str | None, int]]:
    """$HOME and user, by what is odd about them."""
    closed = workdir / "closed"
    closed.mkdir(mode=0o700)
    half = workdir / "half"
    (half / ".config").mkdir(parents=True, mode=0o755)
    (half / ".config").chmod(0o700)
    file = workdir / "file"
    file.touch()
    return {
        "of another user": (str(closed), NOBODY),
        "with a closed .config": (str(half), NOBODY),
        "a file": (str(file), NOBODY),
        "absent": (str(workdir / "absent"), NOBODY),
        "relative": ("here", NOBODY),
        "empty": ("", NOBODY),
        "unset": (None, NOBODY),
        "unset, of an unknown user": (None, UNKNOWN),
        "relative, of an unknown user": ("here", UNKNOWN),
    }


ODD = (
    *("of another user", "with a closed .config", "a file", "absent", "relative", "empty", "unset"),
    *("unset, of an unknown user", "relative, of an unknown user"),
)


@pytest.mark.parametrize("kind", ODD)
def test_an_odd_home_does_not_hide_the_systems_configuration(run: Run, etc: Path, homes, kind: str) -> None:
    home, uid = homes[kind]
    for arguments in (["config", "check", "broker"], ["config", "check"]):
        ran = run(*arguments, home=home, uid=uid)
        assert ran.status == 0, ran.err
        assert ran.out.startswith(f"{etc}/broker.toml: ok: ")
    ran = run("config", "check", "nobody", home=home, uid=uid)
    assert ran.status == 2
    assert "nobody: no such configuration; create " in ran.err
    assert f"{etc}/nobody.toml" in ran.err


@pytest.mark.parametrize("kind", ODD)
def test_an_odd_home_gives_verbs_without_a_name_one_line(run: Run, homes, kind: str) -> None:
    home, uid = homes[kind]
    ran = run("status", home=home, uid=uid)
    assert ran.err.startswith("commitlogfs: ")
    if "unknown user" in kind:
        assert (ran.status, "set $XDG_RUNTIME_DIR or $COMMITLOGFS_RUNTIME_DIR" in ran.err) == (2, True)
    elif kind == "of another user":
        assert (ran.status, "set $HOME to this user's home" in ran.err) == (4, True)
    else:
        assert (ran.status, "no mount is running" in ran.err) == (3, True)


def test_a_configuration_that_this_user_may_not_read(run: Run, etc: Path) -> None:
    file = etc / "broker.toml"
    file.chmod(0o600)
    for arguments in (["broker"], []):
        ran = run("config", "check", *arguments, home="/nonexistent")
        assert ran.status == 2
        assert f"{file}: cannot be read (Permission denied)" in ran.err


def test_a_directory_of_configurations_that_this_user_may_not_read(run: Run, etc: Path) -> None:
    etc.chmod(0o700)
    ran = run("config", "check", "broker", home="/nonexistent")
    assert ran.status == 2
    assert f"{etc}/broker.toml: cannot be read (Permission denied)" in ran.err
    ran = run("config", "check", home="/nonexistent")
    assert ran.status == 2
    assert f"{etc}: cannot be read (Permission denied); run as root, or give a file" in ran.err
    assert f"note: {etc}: cannot be read (Permission denied)" in run("doctor", home="/nonexistent").out


def test_the_users_own_configuration_still_comes_first(run: Run, workdir: Path) -> None:
    own = workdir / "home/.config/commitlogfs"
    own.mkdir(parents=True)
    (own / "broker.toml").write_text(_TOML)
    assert run("config", "check", "broker", home=str(workdir / "home")).out.startswith(f"{own}/broker.toml: ok: ")
