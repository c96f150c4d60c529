"""The times of a process: $COMMITLOGFS_TIMING."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support.command_line import run_cli
from support.keeper_stub import KeptStub
from support.pools import PoolMount
from support.timings import timing_variables

from commitlogfs.console.errors import UsageError
from commitlogfs.mount.config.timing import VARIABLE, timing_from
from commitlogfs.mount.location.control_client import PEER_TIMEOUT_S
from commitlogfs.store.timing import DEFAULT, CheckTiming, DaemonTiming, HealthTiming, RequestTiming, Timing

BROKER_S = 5.0
"""How long a broker waits for a segment, or for the end of a removal."""
FIELDS = [
    (section.name, field.name)
    for section in dataclasses.fields(Timing)
    for field in dataclasses.fields(getattr(DEFAULT, section.name))
]


@pytest.mark.parametrize("environ", [{}, {VARIABLE: ""}, {VARIABLE: "{}"}, {VARIABLE: '{"health": {}}'}])
def test_times_are_the_usual_ones_without_a_change(environ: dict[str, str]) -> None:
    assert timing_from(environ) == DEFAULT


def test_given_times_replace_the_usual_ones() -> None:
    text = '{"health": {"lost_after_s": 5, "full_s": 0.25}, "keeper": {"start_s": 0}}'
    health = dataclasses.replace(DEFAULT.health, lost_after_s=5.0, full_s=0.25)
    keeper = dataclasses.replace(DEFAULT.keeper, start_s=0.0)
    assert timing_from({VARIABLE: text}) == dataclasses.replace(DEFAULT, health=health, keeper=keeper)


@pytest.mark.parametrize(("section", "field"), FIELDS, ids=lambda name: name)
def test_every_time_can_be_set(section: str, field: str) -> None:
    value = getattr(getattr(DEFAULT, section), field) * 3 / 4 or 4711.5  # a little less contradicts no other time
    changed = timing_from({VARIABLE: json.dumps({section: {field: value}})})
    assert getattr(getattr(changed, section), field) == value
    assert changed == timing_from(timing_variables(changed))
    values = dataclasses.asdict(changed)
    values[section][field] = getattr(getattr(DEFAULT, section), field)
    assert values == dataclasses.asdict(DEFAULT)


@pytest.mark.parametrize(
    ("section", "shorter", "longer"),
    [
        (RequestTiming, "resize_s", "change_s"),
        (RequestTiming, "link_s", "create_s"),
    ],
)
def test_times_that_contradict_each_other_are_refused(section: type, shorter: str, longer: str) -> None:
    for values in ({shorter: 3.0, longer: 3.0}, {shorter: 6.0, longer: 3.0}):
        with pytest.raises(ValueError, match=f"{shorter} is .*less than {longer}, which is 3"):
            section(**values)
    section(**{shorter: 3.0, longer: 6.0})


def test_the_defaults_fit_into_the_patience_of_those_who_wait() -> None:
    """As the docstrings of the times say. A broker and a control client wait 5 s."""
    requests, members, hung_s = DEFAULT.requests, DEFAULT.members, DEFAULT.checks.hung_s
    assert requests.create_s < BROKER_S
    assert requests.prepare_s + requests.remove_s <= BROKER_S
    assert 2 * members.record_s < PEER_TIMEOUT_S
    assert members.record_s + DEFAULT.daemon.free_s < PEER_TIMEOUT_S
    assert hung_s + members.record_s < PEER_TIMEOUT_S
    assert hung_s + DEFAULT.daemon.successor_s < PEER_TIMEOUT_S


def test_only_differences_are_in_the_variable() -> None:
    timing = Timing(health=HealthTiming(lost_after_s=5.0), checks=CheckTiming())
    assert timing_variables(timing) == {VARIABLE: '{"health": {"lost_after_s": 5.0}}'}
    assert timing_variables(DEFAULT) == {VARIABLE: ""}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{", "not JSON"),
        ('"5"', ": not an object"),
        ("[]", ": not an object"),
        ("null", ": not an object"),
        ('{"helth": {}}', ": helth: unknown section; write one of requests, health, checks, "),
        ('{"health": 5}', ": health: not an object"),
        ('{"keeper": {"lock": 5}}', ": keeper.lock: unknown field; write one of lock_s, called_s, "),
        ('{"keeper": {"lock_s": "5"}}', ': keeper.lock_s: "5" is not a time; '),
        ('{"keeper": {"lock_s": null}}', ": keeper.lock_s: null is not a time; "),
        ('{"keeper": {"lock_s": true}}', ": keeper.lock_s: true is not a time; "),
        ('{"keeper": {"lock_s": [5]}}', ": keeper.lock_s: [5] is not a time; "),
        ('{"keeper": {"lock_s": -0.5}}', ": keeper.lock_s: -0.5 is not a time; "),
        ('{"keeper": {"lock_s": NaN}}', ": keeper.lock_s: NaN is not a time; "),
        ('{"keeper": {"lock_s": Infinity}}', ": keeper.lock_s: Infinity is not a time; "),
        (f'{{"keeper": {{"lock_s": 1{"0" * 400}}}}}', " is not a time; "),
        ('{"requests": {"resize_s": 3}}', ": requests: resize_s is 3; it has to be less than change_s, which is 3"),
    ],
)
def test_a_wrong_value_is_refused_in_one_line(text: str, error: str) -> None:
    with pytest.raises(UsageError) as refused:
        timing_from({VARIABLE: text})
    line = str(refused.value)
    assert line.startswith(f"${VARIABLE}: ")
    assert error in line
    assert "\n" not in line


WRONG = {VARIABLE: '{"keeper": {"lock": 5}}'}


@pytest.mark.mounted
@pytest.mark.root
def test_a_daemon_logs_times_that_differ(make_pool: Callable[..., PoolMount]) -> None:
    times = timing_variables(Timing(daemon=DaemonTiming(status_s=1.5)))
    pool = make_pool(1, variables=times)
    pool.start()
    lines = [line for line in pool.log_since_start().splitlines() if " event=times_changed " in line]
    assert len(lines) == 1
    assert "status_s" in lines[0]
    assert " warning " in lines[0]


@pytest.mark.mounted
@pytest.mark.parametrize(
    "options",
    [
        ["--no-keeper"],
        ["--daemon"],
        pytest.param([], marks=pytest.mark.full),
        pytest.param(["--daemon", "--no-keeper"], marks=pytest.mark.full),
    ],
)
def test_a_mount_with_wrong_times_is_refused(make_pool: Callable[..., PoolMount], options: list[str]) -> None:
    pool = make_pool(1)
    ran = run_cli("mount", *options, pool.config, env={**pool.env, **WRONG})
    assert ran.status == 2
    assert f"commitlogfs: ${VARIABLE}: keeper.lock: unknown field; " in ran.err
    assert not pool.mountpoint.is_mount()


def test_a_keeper_with_wrong_times_starts_no_daemon(workdir: Path) -> None:
    stub = KeptStub(workdir, environment=WRONG)
    stub.start()
    assert stub.wait() == 2
    assert not stub.runs()
    assert f"commitlogfs: ${VARIABLE}: keeper.lock: unknown field; " in stub.log
