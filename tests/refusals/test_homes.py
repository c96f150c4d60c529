"""A user whose $HOME is another user's, a file, relative or missing, as under cron, setpriv or in a container."""

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.command_line import LOAD_VERB, Ran
from support.waiting import PATIENCE_S

pytestmark = pytest.mark.root

NOBODY = 65534
UNKNOWN = 54_321
"""In no user database."""

# All is loaded once and before the change of user, who need not be able to read the installation. For each line of
# standard input, a child process is a command; the answer is its exit status.
_COMMANDS = (
    LOAD_VERB
    + """
import json, os, sys
from pathlib import Path
from commitlogfs.mount.config import model
for verb in ("config", "doctor", "status"):
    load_verb(verb)
def run(arguments, uid, environment, directory, etc):
    os.chdir(directory)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.environ.clear()
    os.environ.update(environment)
    model.SYSTEM_DIRECTORY = Path(etc)
    os.setgroups([]); os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid)
    sys.exit(cli.main(arguments))
for line in sys.stdin:
    child = os.fork()
    if not child:
        run(**json.loads(line))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
)
# Without the mounts of others, which `status` would show.
_ALONE = (
    *("unshare", "--mount", "--propagation", "private", "sh", "-c"),
    'while read -r _ place type _; do [ "$type" != fuse.commitlogfs ] || umount -l "$place"; done </proc/mounts; '
    'exec "$@"',
    "sh",
)
_TOML = 'mountpoint = "/mnt/x"\n[[disks]]\npath = "/mnt/disk"\n'

Run = Callable[..., Ran]


def few_variables() -> dict[str, str]:
    """The environment that a command gets, without $HOME."""
    return {key: os.environ[key] for key in ("PATH", "LANG") if key in os.environ}


@pytest.fixture(scope="module")
def commands() -> Iterator["subprocess.Popen[str]"]:
    """Takes the arguments of `run` in _COMMANDS, one JSON object a line."""
    with subprocess.Popen(
        [*_ALONE, sys.executable, "-c", _COMMANDS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=few_variables(),
    ) as process:
        try:
            yield process
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()


@pytest.fixture
def etc(workdir: Path) -> Path:
    """/etc/commitlogfs with one configuration, broker."""
    directory = workdir / "etc"
    directory.mkdir()
    (directory / "broker.toml").write_text(_TOML)
    return directory


@pytest.fixture
def run(workdir: Path, etc: Path, commands: "subprocess.Popen[str]") -> Run:
    """`commitlogfs ARGUMENTS` as a user without privileges; `home` None: without $HOME."""

    def run(*arguments: str, home: str | None, uid: int = NOBODY) -> Ran:
        environment = few_variables()
        if home is not None:
            environment["HOME"] = home
        order = {"arguments": arguments, "uid": uid, "environment": environment}
        assert commands.stdin is not None
        assert commands.stdout is not None
        print(json.dumps({**order, "directory": str(workdir), "etc": str(etc)}), file=commands.stdin, flush=True)
        assert select.select([commands.stdout], [], [], PATIENCE_S)[0], "no end of the command"
        status = int(commands.stdout.readline())
        out, err = ((workdir / name).read_text() for name in ("out", "err"))
        assert "Traceback" not in err, err
        assert status == 0 or err.count("\n") == 1 or arguments[0] == "doctor", err
        return Ran(status, out, err)

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
