"""Whatever is typed: one line that says what is wrong, the documented exit status, never a traceback."""

import errno
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer
from support.command_line import CommandLine
from support.waiting import PATIENCE_S
from typer.core import TyperGroup
from typer.main import get_command

from commitlogfs.mount import cli as cli_module
from commitlogfs.mount.cli import application
from commitlogfs.mount.config import model as config_module

VERBS = ["init", "adopt", "destroy", "mount", "umount", "restart", "ready", "status", "map", "locate", "read"]
VERBS += ["check", "explain", "doctor", "debug", "bench", "reopen-logs", "restore", "top", "exporter"]
USAGE, UNREACHABLE = 2, 3


def test_version():
    ran = CommandLine()("--version")
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert (ran.status, ran.out) == (0, f"commitlogfs {project['version']}\n")


@pytest.fixture
def cli(monkeypatch, tmp_path):
    """Nothing runs here and nothing is configured; `bad.toml` has a misspelt key, `good.toml` none."""
    tmp_path.chmod(0o700)
    (tmp_path / "run").mkdir(mode=0o700)
    monkeypatch.setenv("COMMITLOGFS_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setattr(config_module, "SYSTEM_DIRECTORY", tmp_path / "etc")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "etc"))
    monkeypatch.chdir(tmp_path)
    text = f'mountpoint = "{tmp_path}/mnt"\n[[disks]]\npath = "{tmp_path}/disk"\n'
    (tmp_path / "good.toml").write_text(text)
    (tmp_path / "bad.toml").write_text(f'plcement = "modulo"\n{text}')
    return CommandLine()


@pytest.mark.parametrize(
    ("line", "status", "said"),
    [
        ("nonsense", USAGE, "No such command 'nonsense'"),
        ("--nonsense", USAGE, "No such option"),
        ("--config", USAGE, "requires an argument"),
        ("map --nonsense", USAGE, "No such option"),
        ("map one two", USAGE, "unexpected extra argument"),
        ("map", UNREACHABLE, "no mount is running"),
        ("map nobody", USAGE, "nobody: no such mount or configuration"),
        ("map good.toml", UNREACHABLE, "good: no daemon is running"),
        ("--config good.toml map", UNREACHABLE, "good: no daemon is running"),
        ("--config absent.toml map", USAGE, "absent.toml: no such file"),
        ("map bad.toml", USAGE, "did you mean placement?"),
        ("map /nowhere/mounted", UNREACHABLE, "no commitlogfs is mounted here"),
        ("map .hidden", USAGE, "not a mount name"),
        ("map " + "x" * 200, USAGE, "not a mount name"),
        ("status", UNREACHABLE, "no mount is running"),
        ("locate", USAGE, "Missing argument"),
        ("locate 0", UNREACHABLE, "no mount is running"),
        ("locate twelve", USAGE, "neither a log offset nor a segment name"),
        ("locate 1_000", USAGE, "neither a log offset"),
        ("locate ١٢", USAGE, "neither a log offset"),
        ("locate 1e9", USAGE, "neither a log offset"),
        ("locate 9223372036854775808", USAGE, "neither a log offset"),
        ("locate " + "0" * 21, USAGE, "neither a log offset"),
        ("locate -- -5", USAGE, "neither a log offset"),
        ("read", USAGE, "Missing option '--offset'"),
        ("read --offset", USAGE, "requires an argument"),
        ("read --offset -1", USAGE, "neither a log offset"),
        ("read --offset x", USAGE, "neither a log offset"),
        ("read --offset 0 --length 0", USAGE, "give at least 1"),
        ("read --offset 0 --length many", USAGE, "--length: 'many' is not a size"),
        ("read --offset 0 --length 5K", USAGE, "KiB"),
        ("read --offset 0 --length 5 --message", USAGE, "leave out --message and --json"),
        ("read --offset 0 --length 5 --json", USAGE, "leave out --message and --json"),
        ("read --offset 0 --raw --json", USAGE, "--raw and --json exclude each other"),
        ("read --offset 0", UNREACHABLE, "no mount is running"),
        ("read --offset 0 /nowhere/mounted", UNREACHABLE, "nothing is mounted here"),
        ("check", USAGE, "no configuration"),
        ("status nobody", USAGE, "nobody: no such mount or configuration"),
        ("locate 0 nobody", USAGE, "nobody: no such mount or configuration"),
        ("read --offset 0 nobody", USAGE, "nobody: no such mount or configuration"),
        ("restart nobody", USAGE, "nobody: no such mount or configuration"),
        ("retention --dry-run nobody", USAGE, "nobody: no such mount or configuration"),
        ("ready nobody", USAGE, "nobody: no such configuration"),
        ("umount nobody", USAGE, "nobody: no such configuration"),
        ("mount nobody", USAGE, "nobody: no such configuration"),
        ("config check nobody", USAGE, "nobody: no such configuration"),
        ("check /nowhere/mounted", USAGE, "no configuration has this mountpoint"),
        ("doctor /nowhere/mounted", USAGE, "no configuration has this mountpoint"),
        ("mount /nowhere/mounted", USAGE, "no configuration has this mountpoint"),
        ("check nobody", USAGE, "nobody: no such configuration"),
        ("check bad.toml", USAGE, "did you mean placement?"),
        ("check good.toml", 4, "no such directory"),
        ("check good.toml --disks a", USAGE, "either a configuration"),
        ("check --disks a,,b", USAGE, "empty"),
        ("check --disks a,a", USAGE, "name each disk once"),
        ("check --disks a", 4, "no such directory"),
        ("doctor nobody", USAGE, "nobody: no such configuration"),
        ("doctor bad.toml", USAGE, "did you mean placement?"),
        ("mount --watchdog 0.5 good.toml", USAGE, "--watchdog: 0.5 is out of range; give 0 (never), or 1"),
        ("mount --watchdog nan good.toml", USAGE, "--watchdog: nan is out of range"),
        ("mount --watchdog inf good.toml", USAGE, "--watchdog: inf is out of range"),
        ("restart", UNREACHABLE, "no mount is running"),
        ("restart --timeout -1", USAGE, "--timeout"),
        ("restart good.toml", UNREACHABLE, "no daemon is running"),
        ("restart .", USAGE, "'.': not a mount name"),
        ("ready", USAGE, "no mount is given"),
        ("--config good.toml ready", UNREACHABLE, "not ready: nothing is mounted here"),
        ("umount", USAGE, "no mount is given"),
        ("--config good.toml umount", UNREACHABLE, "no commitlogfs is mounted here"),
        ("init", USAGE, "give either a configuration"),
        ("adopt --disks a --segment-size 5", USAGE, "multiple of 4096"),
        ("mount", USAGE, "no configuration given"),
        ("bench --size 5", USAGE, "--size: 5 is not a multiple"),
        ("bench --body many", USAGE, "--body: 'many' is not a size"),
        ("bench --rounds 0", USAGE, "--rounds"),
        ("rebalance plan", UNREACHABLE, "no mount is running"),
        ("rebalance start nobody", USAGE, "nobody: no such mount or configuration"),
        ("rebalance cancel good.toml", UNREACHABLE, "good: no daemon is running"),
        ("rebalance status --rate 5", USAGE, "No such option"),
        ("config check absent.toml", USAGE, "no such file"),
        ("init --disks a,b\udcff", USAGE, "is not UTF-8, so no configuration file can name it; rename it"),
        ("adopt --disks b\udcff", USAGE, "b\\udcff' is not UTF-8"),
        ("check --disks b\udcff", USAGE, "b\\udcff' is not UTF-8"),
        ("mount --init b\udcff ./mnt", USAGE, "b\\udcff' is not UTF-8"),
        ("mount --init a ./b\udcff", USAGE, "b\\udcff' is not UTF-8"),
        ("mount ./b\udcff", USAGE, "b\\udcff: not a configuration file"),
        ("mount ./b\udcff.toml", USAGE, "b\\udcff.toml: no such file"),
        ("status ./b\udcff", UNREACHABLE, "b\\udcff: no commitlogfs is mounted here"),
    ],
)
def test_bad_arguments(cli, tmp_path, line, status, said):
    before = sorted(tmp_path.rglob("*"))
    ran = cli(*line.split())
    assert (ran.status, ran.out) == (status, "")
    assert ran.err.startswith("commitlogfs: ")
    assert said in ran.err
    assert ran.err.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


VERBS_THAT_TAKE_A_NAME = ["status", "map", "locate 0", "read --offset 0", "restart", "ready", "umount", "mount"]
VERBS_THAT_TAKE_A_NAME += ["check", "destroy", "doctor", "retention --dry-run", "config check"]


@pytest.mark.parametrize("verb", VERBS_THAT_TAKE_A_NAME)
def test_a_misspelt_name_gets_a_suggestion(cli, tmp_path, verb):
    (tmp_path / "etc" / "commitlogfs").mkdir(parents=True)
    for directory in config_module.config_directories():
        (directory / "orders.toml").write_text((tmp_path / "good.toml").read_text())
    ran = cli(*verb.split(), "order")
    assert (ran.status, ran.out) == (USAGE, "")
    assert "order: no such" in ran.err
    assert "did you mean orders?" in ran.err
    assert ran.err.count("\n") == 1


def test_a_broken_configuration_does_not_stop_the_doctor(cli, tmp_path):
    """Without an argument it checks all configurations."""
    directory = next(path for path in config_module.config_directories())
    directory.mkdir(parents=True)
    (tmp_path / "bad.toml").rename(directory / "bad.toml")
    ran = cli("doctor")
    assert ran.status == 1
    assert f"problem: {directory}/bad.toml: plcement: unknown key" in ran.out


@pytest.mark.parametrize("option", ["-h", "--help"])
@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself(cli, verb, option):
    ran = cli(verb, option)
    assert (ran.status, ran.err) == (0, "")
    assert "EXIT STATUS: 0 " in ran.out


@pytest.mark.parametrize("line", ["", "config", "retention"])
def test_without_arguments_the_help_is_all_that_is_said(cli, line):
    ran = cli(*line.split())
    assert ran.status == USAGE
    assert "Usage: " in ran.out + ran.err
    assert "commitlogfs: \n" not in ran.err


def test_the_table_of_verbs_is_complete():
    registered = application().registered_commands
    assert {command.name or command.callback.__name__ for command in registered} == set(VERBS)


@pytest.mark.parametrize("verb", cli_module.VERBS)
def test_each_verb_is_loaded_alone(verb):
    command = get_command(application(verb))
    assert isinstance(command, TyperGroup)
    assert list(command.commands) == [verb]
    assert cli_module.verb_of([verb]) == verb


@pytest.mark.parametrize(
    ("line", "verb"),
    [
        ("--config status map", "map"),
        ("--config=status map", "map"),
        ("-v --json status init", "status"),
        ("bench status", None),
        ("no-such-verb", None),
        ("--help", None),
        ("", None),
    ],
)
def test_the_verb_is_found_behind_options(line, verb):
    assert cli_module.verb_of(line.split()) == verb


def test_a_system_error_that_no_command_foresees_is_one_line(monkeypatch, capsys):
    failing = typer.Typer(name="commitlogfs")

    @failing.command()
    def status() -> None:
        raise OSError(errno.EIO, "Input/output error", "/data1/x")

    monkeypatch.setattr(cli_module, "application", lambda _verb: failing)
    assert cli_module.main([]) == 1
    assert capsys.readouterr().err == "commitlogfs: /data1/x: Input/output error\n"


def test_letters_that_the_locale_has_not_are_escaped(tmp_path):
    disk = tmp_path / "Ni\u0107"
    disk.mkdir()
    command = [sys.executable, "-m", "commitlogfs.mount.cli", "init", "--disks", str(disk), "--dry-run"]
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1:strict"}
    done = subprocess.run(command, env=environment, capture_output=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"Ni\u0107" in done.stdout
