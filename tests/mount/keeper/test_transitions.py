"""The keeper's state machine: every cell of its table, and what messages and ends of daemons mean."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from commitlogfs.mount.keeper import policy
from commitlogfs.mount.keeper.descriptors import KeptDescriptors
from commitlogfs.mount.keeper.inbox import Inbox
from commitlogfs.mount.keeper.loop import Keeper
from commitlogfs.mount.keeper.options import Options
from commitlogfs.mount.keeper.policy import Outcome
from commitlogfs.mount.keeper.standby_call import PREPARE, SERVING
from commitlogfs.mount.keeper.transitions import (
    DEADLINE_EVENTS,
    TABLE,
    Action,
    Event,
    State,
    Step,
    time_limits,
)
from commitlogfs.mount.linux.stop_signals import Signals
from commitlogfs.store.timing import DEFAULT

ROOT = Path(__file__).resolve().parents[3]
DOCUMENT = ROOT / "docs" / "reference" / "keeper.md"
RUNNING = frozenset(State) - {State.NO_DAEMON, State.DONE}
LIMITS_S = time_limits(DEFAULT.keeper)
MESSAGES = tuple(Event)[: tuple(Event).index(Event.PREPARE) + 1]
ENDS = frozenset(
    {
        *(Event.MOUNT_ENDED, Event.FIRST_FAILED, Event.HANDED_OVER, Event.DIED, Event.DIED_WITH_MOUNT),
        *(Event.REFUSED, Event.FAILED),
    }
)

# What each event does in each state: a state's letter for the next state, "." for the same, "-" where nothing at
# all is done, "x" where the event does not happen. Columns: no daemon, called, starting, ready, stopping, hung,
# killed, done.
CELLS = """
HEARD           x S - - - - - x
ALIVE           x x - . . . . x
SERVING         x x . . . . . x
READY           x x R - - - - x
STOPPING        x x T T - - - x
WATCHDOG        x x - . - - - x
EXTEND          x x . - . - - x
PREPARE         x x - . - - - x
STOP            . . . . . . . -
EARLY_STOP      . x . x . . . -
SOCKET_GONE     x . . . x x x x
SLOW            x . x . x x x x
UNREPLACEABLE   x x x . x x x x
UNKILLABLE      x x x x x x N x
EXPIRED         x K H H H K . x
MOUNT_ENDED     D D D D D D D x
FIRST_FAILED    D x D x D D D x
HANDED_OVER     x N N N N N N x
DIED            N x N N N N N x
DIED_WITH_MOUNT N x N N N N N x
REFUSED         x N N x N N N x
FAILED          N N N x N N N x
PAUSE           . x x x x x x x
HOPELESS        D x x x x x x x
UNMOUNTED       D - - - - - - -
START_DUE       . x x x x x x x
NOT_NEEDED      D x x x x x x x
STANDBY_CALLED  C x x x x x x x
STARTED         S x x x x x x x
ADOPTED         R x x x x x x x
"""
LETTERS = dict(zip("NCSRTHKD", State, strict=True))


def shown(state: State, event: Event) -> str:
    step = TABLE[state, event]
    if step.impossible:
        return "x"
    if step.next is not None:
        return next(letter for letter, state in LETTERS.items() if state is step.next)
    return "." if step.actions else "-"


@pytest.mark.parametrize("line", CELLS.split("\n")[1:-1], ids=lambda line: line.split()[0])
def test_an_event_leads_to_the_expected_states(line: str) -> None:
    name, *cells = line.split()
    assert [shown(state, Event[name]) for state in State] == cells


def test_the_expected_states_are_those_of_every_event() -> None:
    assert [line.split()[0] for line in CELLS.split("\n")[1:-1]] == [event.name for event in Event]


def test_an_impossible_event_changes_nothing() -> None:
    assert all(step.next is None and not step.actions for step in TABLE.values() if step.impossible)


def test_an_entered_state_gets_its_deadline() -> None:
    """By the action that sets it. Only a called standby keeps its deadline when it is heard."""
    astray = {
        (state, event)
        for (state, event), step in TABLE.items()
        if step.next in {*LIMITS_S, State.READY}
        and not {Action.SET_DEADLINE, Action.EXPECT_WATCHDOG} & set(step.actions)
    }
    assert astray == {(State.CALLED, Event.HEARD)}
    assert set(LIMITS_S) == RUNNING - {State.READY}
    assert all(step.next in LIMITS_S for step in TABLE.values() if Action.SET_DEADLINE in step.actions)


def test_a_deadline_passes_in_every_state_with_a_daemon() -> None:
    assert {state for state in State if not TABLE[state, Event.EXPIRED].impossible} == RUNNING
    assert DEADLINE_EVENTS[-1] is Event.EXPIRED


def test_the_work_is_done_by_an_action_that_says_how() -> None:
    endings = {Action.END_WITH_MOUNT, Action.END_FAILED, Action.END_WELL, Action.GIVE_UP}
    for step in TABLE.values():
        assert (step.next is State.DONE) == bool(endings & set(step.actions))


def test_only_an_aborted_or_silent_daemon_is_killed() -> None:
    killing = {state for (state, _), step in TABLE.items() if Action.KILL in step.actions}
    assert killing == {State.CALLED, State.HUNG}


def test_a_stop_signal_is_sent_only_where_it_can_be_taken() -> None:
    sent = {state for state in State if Action.SEND_STOP in TABLE[state, Event.STOP].actions}
    assert sent == {State.READY, State.STOPPING}
    remembered = {state for state in State if Action.REMEMBER_STOP in TABLE[state, Event.STOP].actions}
    assert remembered == RUNNING


def reachable() -> set[State]:
    found, pending = {State.NO_DAEMON}, [State.NO_DAEMON]
    while pending:
        state = pending.pop()
        following = {step.next for (at, _), step in TABLE.items() if at is state and step.next is not None}
        pending += following - found
        found |= following
    return found


def test_every_state_is_reached_and_left_except_the_last() -> None:
    assert reachable() == set(State)
    left = {state for (state, _), step in TABLE.items() if step.next not in (None, state)}
    assert left == set(State) - {State.DONE}


def test_every_action_is_used() -> None:
    assert {action for step in TABLE.values() for action in step.actions} == set(Action)


# --- messages and ends become events -------------------------------------------------------------------------


def events(fields: dict[str, str], *, in_use: bool = True, with_standby: bool = True) -> list[Event]:
    return list(policy.message_events(fields, in_use=in_use, with_standby=with_standby))


def test_one_message_is_several_events_in_their_order() -> None:
    fields = {"STATUS": "x", "READY": "1", "STOPPING": "1", "WATCHDOG": "1", "EXTEND_TIMEOUT_USEC": "5"}
    assert events({**fields, PREPARE: "1", SERVING: "1"}) == list(MESSAGES)


def test_an_answer_before_the_mount_is_in_use_does_not_count() -> None:
    assert events({SERVING: "1"}, in_use=False) == [Event.HEARD]


def test_without_standby_none_is_prepared() -> None:
    assert events({PREPARE: "1"}, with_standby=False) == [Event.HEARD]


@pytest.mark.parametrize("fields", [{"MAINPID": "1"}, {"READY": "0"}, {"EXTEND_TIMEOUT_USEC": "x"}, {}])
def test_other_fields_are_a_message_and_nothing_else(fields: dict[str, str]) -> None:
    assert events(fields) == [Event.HEARD]


@pytest.mark.parametrize(
    ("text", "seconds"), [("1500000", 1.5), ("", 0.0), ("-1", 0.0), ("1.5", 0.0), ("9" * 18, 1e12), ("9" * 19, 0.0)]
)
def test_a_time_that_is_not_a_number_is_not_granted(text: str, seconds: float) -> None:
    assert policy.extension_s({"EXTEND_TIMEOUT_USEC": text}) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("status", "differing", "event"),
    [
        (0, {}, Event.MOUNT_ENDED),
        (0, {"has_served": False}, Event.FAILED),
        (0, {"has_served": False, "in_use": False}, Event.MOUNT_ENDED),
        (0, {"has_served": False, "mounted": False}, Event.MOUNT_ENDED),
        (-9, {"mounted": False}, Event.MOUNT_ENDED),
        (1, {"in_use": False, "has_served": False}, Event.FIRST_FAILED),
        (75, {"in_use": False, "has_served": False, "kept": False}, Event.FIRST_FAILED),
        (75, {"in_use": False, "has_served": False}, Event.HANDED_OVER),
        (75, {}, Event.HANDED_OVER),
        (75, {"kept": False}, Event.DIED_WITH_MOUNT),
        (-9, {}, Event.DIED),
        (4, {}, Event.DIED),
        (None, {}, Event.DIED),
        (None, {"kept": False}, Event.DIED_WITH_MOUNT),
        (2, {"has_served": False}, Event.REFUSED),
        (4, {"has_served": False}, Event.REFUSED),
        (1, {"has_served": False}, Event.FAILED),
        (-6, {"has_served": False, "kept": False}, Event.FAILED),
    ],
)
def test_an_end_is_one_event(status: int | None, differing: dict[str, bool], event: Event) -> None:
    normal = {"mounted": True, "in_use": True, "kept": True, "has_served": True}
    assert policy.end_event(status, **{**normal, **differing}) is event


def test_every_kind_of_end_is_possible_after_a_start() -> None:
    assert {event for event in ENDS if not TABLE[State.STARTING, event].impossible} == ENDS


@pytest.mark.parametrize(
    ("status", "mounted", "in_use", "outcome"),
    [
        (0, False, True, Outcome(0)),
        (0, True, True, Outcome(0, leaves_mount=True)),
        (1, False, True, Outcome(1)),
        (-9, False, True, Outcome(0)),
        (75, False, True, Outcome(0)),
        (-9, False, False, Outcome(137)),
        (4, False, False, Outcome(4)),
        (None, False, True, Outcome(0)),
    ],
)
def test_the_outcome_of_an_ended_mount(status: int | None, mounted: bool, in_use: bool, outcome: Outcome) -> None:
    assert policy.outcome_of_end(status, mounted=mounted, in_use=in_use) == outcome


# --- the loop and the table ----------------------------------------------------------------------------------


@pytest.fixture
def keeper(workdir: Path, signals: Signals) -> Iterator[Keeper]:
    inbox = Inbox(workdir / "n")
    yield Keeper(Options("a", str(workdir), ("true",)), inbox, KeptDescriptors(), signals, DEFAULT.keeper)
    inbox.close()


def test_the_loop_carries_out_every_action(keeper: Keeper) -> None:
    assert set(keeper.actions) == set(Action)


def test_an_impossible_event_is_reported_and_ignored(keeper: Keeper, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        keeper.take(Event.READY)
    assert [record.message for record in caplog.records] == ["keeper_event_impossible"]
    assert keeper.state is State.NO_DAEMON


# --- the document --------------------------------------------------------------------------------------------

SECTIONS = {
    Event.HEARD: "messages of the daemon",
    Event.STOP: "signals",
    Event.SOCKET_GONE: "the daemon's deadline has passed",
    Event.MOUNT_ENDED: "the daemon has ended, or did not start",
    Event.PAUSE: "no daemon runs",
}
"""First event of each section."""


def described(step: Step) -> tuple[str, str]:
    """The last two columns."""
    if step.impossible:
        return "", f"impossible: {step.impossible}"
    done = "; ".join(action.value for action in step.actions)
    return (step.next.value, done) if step.next else ("", done or "ignored")


def document() -> str:
    """The tables of docs/reference/keeper.md, made from the code."""
    lines = ["| state | deadline |", "|---|---|"]
    lines += [f"| {state.value} | {seconds:g} s |" for state, seconds in LIMITS_S.items()]
    for event in Event:
        if event in SECTIONS:
            lines += ["", f"## Events: {SECTIONS[event]}", ""]
            lines += ["| event | states | next state | what the keeper does |", "|---|---|---|---|"]
        groups: dict[tuple[str, str], list[str]] = {}
        for state in State:
            groups.setdefault(described(TABLE[state, event]), []).append(state.value)
        ordered = sorted(groups.items(), key=lambda group: (group[0][1].startswith("impossible"), not group[0][0]))
        for index, ((following, text), states) in enumerate(ordered):
            name = "" if index else event.value
            lines.append(" ".join(f"| {name} | {', '.join(states)} | {following} | {text} |".split()))
    return "\n".join(lines) + "\n"


def test_the_document_shows_the_table_and_the_deadlines() -> None:
    assert document() in DOCUMENT.read_text()
