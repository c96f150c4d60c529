"""The keeper's state machine as a table: what each event does in each state. Pure.

docs/reference/keeper.md shows the table. `mount.keeper.loop` turns messages, signals, ends of processes and
deadlines into events, and carries out the actions. What is the same in every state is not in the table: the
descriptor store (FDSTORE, FDSTOREREMOVE), the messages for the keeper's own service manager, and SIGHUP.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from commitlogfs.store.timing import KeeperTiming


class State(Enum):
    """Condition of the present daemon. The values appear in the log."""

    NO_DAEMON = "no daemon"
    """None runs: the first has not been started, or the next start has its time."""
    CALLED = "called"
    """It stood by and has been called; it has not said anything since."""
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    HUNG = "hung"
    """It has got SIGABRT."""
    KILLED = "killed"
    """It has got SIGKILL."""
    DONE = "done"
    """The keeper ends."""


class Event(Enum):
    """Events that a keeper meets. One message may be several events, in this order."""

    # messages of the present daemon
    HEARD = "any message"
    ALIVE = "STATUS, STOPPING or WATCHDOG"
    SERVING = "X_COMMITLOGFS_SERVING: it is about to answer its first request"
    READY = "READY"
    STOPPING = "STOPPING"
    WATCHDOG = "WATCHDOG"
    EXTEND = "EXTEND_TIMEOUT_USEC"
    PREPARE = "X_COMMITLOGFS_PREPARE: `restart` needs a standby of what is installed"
    # signals
    STOP = "stop signal"
    EARLY_STOP = "stop signal before any daemon was ready"
    # the deadline of the present daemon has passed: the first of these that is true and possible
    SOCKET_GONE = "messages could not arrive"
    SLOW = "it is slow, but it runs"
    UNREPLACEABLE = "no successor could take over"
    UNKILLABLE = "a disk holds it in the kernel, and a successor can take over"
    EXPIRED = "none of the above"
    # the end of the present daemon, or a start that failed
    MOUNT_ENDED = "its mount is gone, or it has served and ended with status 0"
    FIRST_FAILED = "it ended before any daemon was ready"
    HANDED_OVER = "it ended to hand over"
    DIED = "it ended after it had served"
    DIED_WITH_MOUNT = "it ended after it had served, and nothing was kept"
    REFUSED = "it refused to take over (exit 2 or 4)"
    FAILED = "it ended, or did not start, before it had served"
    # no daemon runs
    PAUSE = "the next start has to wait"
    HOPELESS = "too many starts failed, and no process holds the mount"
    UNMOUNTED = "the keeper has unmounted"
    START_DUE = "time of the next start"
    NOT_NEEDED = "time of the next start, and the mount is gone"
    STANDBY_CALLED = "the standby has been called"
    STARTED = "a daemon has been started"
    ADOPTED = "a running daemon has been adopted"


DEADLINE_EVENTS: Final = (
    Event.SOCKET_GONE,
    Event.SLOW,
    Event.UNREPLACEABLE,
    Event.UNKILLABLE,
    Event.EXPIRED,
)


class Action(Enum):
    """Reactions of the keeper to an event."""

    START = "call the standby, or start a daemon"
    WANT_STANDBY = "have a standby loaded soon"
    RELOAD_STANDBY = "replace the standby by one of what is installed"
    DISMISS_OLD_STANDBY = "dismiss a standby that was not asked for"
    RECORD_SERVED = "set the count of failed starts to 0"
    RECORD_READY = "record that the mount is in use"
    REPORT_ANSWER = "report that it answers again, if it was reported as hung"
    EXPECT_WATCHDOG = "expect the next WATCHDOG within the interval"
    SET_DEADLINE = "set the deadline of the new state"
    EXTEND_DEADLINE = "extend the deadline as asked"
    GRANT_START_TIME = "wait as long as for a start"
    GRANT_INTERVAL = "wait one watchdog interval more"
    WAIT_LONGER = "report it as slow, wait longer"
    CLEAR_DEADLINE = "wait without a deadline"
    REPORT_UNREPLACEABLE = "report that it hangs and is not replaced"
    REPORT_SILENT_STANDBY = "report that it was not heard"
    REPORT_HUNG = "report that it hangs"
    REPORT_UNKILLABLE = "report that it cannot be killed"
    SET_ASIDE = "leave it to itself; the next start is due"
    ABORT = "send SIGABRT"
    KILL = "send SIGKILL"
    REMEMBER_STOP = "remember the signal"
    FORGET_STOP = "forget a remembered stop signal"
    SEND_STOP = "send the signal to the daemon"
    SEND_REMEMBERED_STOP = "send a remembered stop signal"
    UNMOUNT = "unmount"
    UNMOUNT_IF_STOPPED = "unmount if a stop signal is remembered"
    REPORT_LOSS = "report the end"
    REPORT_DEAD_MOUNT = "report that the mount is dead"
    REPORT_PAUSE = "report that no daemon serves"
    REPORT_UNMOUNTED = "report that the mount is gone"
    END_WITH_MOUNT = "report the end of daemon and mount, end with its status"
    END_FAILED = "report the failed start, end with its status"
    END_WELL = "end with status 0"
    GIVE_UP = "report that it gives up, end with status 1"


def time_limits(timing: KeeperTiming) -> Mapping[State, float]:
    """How long a daemon may stay in a state, in seconds. READY: the watchdog interval."""
    return {
        State.CALLED: timing.called_s,
        State.STARTING: timing.start_s,
        State.STOPPING: timing.stopping_s,
        State.HUNG: timing.aborted_s,
        State.KILLED: timing.killed_s,
    }


@dataclass(frozen=True, slots=True)
class Step:
    """One cell of the table."""

    next: State | None = None
    """The next state; None for the same."""
    actions: tuple[Action, ...] = ()
    impossible: str = ""
    """Why the event does not happen in this state."""


def _impossible(reason: str) -> Step:
    return Step(impossible=reason)


_IGNORED = Step()
_ENDING = (State.STOPPING, State.HUNG, State.KILLED)
_STARTED = (State.STARTING, State.READY, *_ENDING)
_RUNNING = (State.CALLED, *_STARTED)
_WITHOUT = (State.NO_DAEMON, State.DONE)

_NO_SENDER = _impossible("messages of other processes are not events")
_HEARD_FIRST = _impossible("the first message has made it starting")
_NO_DEADLINE = _impossible("there is no daemon with a deadline")
_NOT_CHECKED = _impossible("not checked, the deadline stands")
_NOTHING_ENDS = _impossible("there is no daemon that could end")
_IN_USE = _impossible("a daemon has been ready")
_HAS_SERVED = _impossible("a daemon that is ready has served")
_SILENT = _impossible("a daemon that has served has been heard")
_NO_EXIT_STATUS = _impossible("a start that failed has no such end")
_ONE_AT_A_TIME = _impossible("there is a daemon")
_OVER = _impossible("nothing is started any more")

_FROM_DAEMON: Final = {_WITHOUT: _NO_SENDER, (State.CALLED,): _HEARD_FIRST}

_ROWS: Final[Mapping[Event, Mapping[tuple[State, ...], Step]]] = {
    Event.HEARD: {_WITHOUT: _NO_SENDER, (State.CALLED,): Step(State.STARTING), _STARTED: _IGNORED},
    Event.ALIVE: {
        **_FROM_DAEMON,
        (State.STARTING,): _IGNORED,
        (State.READY, *_ENDING): Step(actions=(Action.FORGET_STOP,)),
    },
    Event.SERVING: {**_FROM_DAEMON, _STARTED: Step(actions=(Action.RECORD_SERVED,))},
    Event.READY: {
        **_FROM_DAEMON,
        (State.STARTING,): Step(
            State.READY,
            (Action.RECORD_READY, Action.EXPECT_WATCHDOG, Action.WANT_STANDBY, Action.SEND_REMEMBERED_STOP),
        ),
        (State.READY, *_ENDING): _IGNORED,
    },
    Event.STOPPING: {
        **_FROM_DAEMON,
        (State.STARTING, State.READY): Step(State.STOPPING, (Action.SET_DEADLINE,)),
        _ENDING: _IGNORED,
    },
    Event.WATCHDOG: {
        **_FROM_DAEMON,
        (State.READY,): Step(actions=(Action.REPORT_ANSWER, Action.EXPECT_WATCHDOG)),
        (State.STARTING, *_ENDING): _IGNORED,
    },
    Event.EXTEND: {
        **_FROM_DAEMON,
        (State.STARTING, State.STOPPING): Step(actions=(Action.EXTEND_DEADLINE,)),
        (State.READY, State.HUNG, State.KILLED): _IGNORED,
    },
    Event.PREPARE: {
        **_FROM_DAEMON,
        (State.READY,): Step(actions=(Action.RELOAD_STANDBY,)),
        (State.STARTING, *_ENDING): _IGNORED,
    },
    Event.STOP: {
        (State.NO_DAEMON,): Step(actions=(Action.UNMOUNT,)),
        # A daemon that is not ready cannot take it yet: the signal would end it.
        (State.CALLED, State.STARTING, State.HUNG, State.KILLED): Step(actions=(Action.REMEMBER_STOP,)),
        (State.READY, State.STOPPING): Step(actions=(Action.REMEMBER_STOP, Action.SEND_STOP)),
        (State.DONE,): _IGNORED,
    },
    Event.EARLY_STOP: {
        (State.NO_DAEMON,): Step(actions=(Action.UNMOUNT,)),
        (State.CALLED, State.READY): _IN_USE,
        (State.STARTING, *_ENDING): Step(actions=(Action.SEND_STOP,)),
        (State.DONE,): _IGNORED,
    },
    Event.SOCKET_GONE: {
        _WITHOUT: _NO_DEADLINE,
        (State.CALLED, State.STARTING): Step(actions=(Action.GRANT_START_TIME,)),
        (State.READY,): Step(actions=(Action.GRANT_INTERVAL,)),
        _ENDING: _NOT_CHECKED,
    },
    Event.SLOW: {
        _WITHOUT: _NO_DEADLINE,
        (State.CALLED, State.READY): Step(actions=(Action.WAIT_LONGER,)),
        (State.STARTING, *_ENDING): _NOT_CHECKED,
    },
    Event.UNREPLACEABLE: {
        _WITHOUT: _NO_DEADLINE,
        (State.READY,): Step(actions=(Action.CLEAR_DEADLINE, Action.REPORT_UNREPLACEABLE)),
        (State.CALLED, State.STARTING, *_ENDING): _NOT_CHECKED,
    },
    Event.UNKILLABLE: {
        _WITHOUT: _NO_DEADLINE,
        (State.KILLED,): Step(State.NO_DAEMON, (Action.REPORT_UNKILLABLE, Action.SET_ASIDE)),
        (State.CALLED, State.STARTING, State.READY, State.STOPPING, State.HUNG): _NOT_CHECKED,
    },
    Event.EXPIRED: {
        _WITHOUT: _NO_DEADLINE,
        # One that has not even run since its call is stopped, and would not see SIGABRT.
        (State.CALLED,): Step(State.KILLED, (Action.REPORT_SILENT_STANDBY, Action.SET_DEADLINE, Action.KILL)),
        (State.STARTING, State.READY, State.STOPPING): Step(
            State.HUNG, (Action.REPORT_HUNG, Action.SET_DEADLINE, Action.ABORT)
        ),
        (State.HUNG,): Step(State.KILLED, (Action.SET_DEADLINE, Action.KILL)),
        (State.KILLED,): Step(actions=(Action.CLEAR_DEADLINE, Action.REPORT_UNKILLABLE)),
    },
    Event.MOUNT_ENDED: {
        (State.NO_DAEMON, *_RUNNING): Step(State.DONE, (Action.END_WITH_MOUNT,)),
        (State.DONE,): _NOTHING_ENDS,
    },
    Event.FIRST_FAILED: {
        (State.NO_DAEMON, State.STARTING, *_ENDING): Step(State.DONE, (Action.END_FAILED,)),
        (State.CALLED, State.READY): _IN_USE,
        (State.DONE,): _NOTHING_ENDS,
    },
    Event.HANDED_OVER: {
        (State.NO_DAEMON,): _NO_EXIT_STATUS,
        # `restart` means the program that is installed now.
        _RUNNING: Step(State.NO_DAEMON, (Action.REPORT_LOSS, Action.DISMISS_OLD_STANDBY)),
        (State.DONE,): _NOTHING_ENDS,
    },
    Event.DIED: {
        (State.CALLED,): _SILENT,
        (State.NO_DAEMON, *_STARTED): Step(State.NO_DAEMON, (Action.REPORT_LOSS,)),
        (State.DONE,): _NOTHING_ENDS,
    },
    Event.DIED_WITH_MOUNT: {
        (State.CALLED,): _SILENT,
        (State.NO_DAEMON, *_STARTED): Step(State.NO_DAEMON, (Action.REPORT_DEAD_MOUNT, Action.REPORT_LOSS)),
        (State.DONE,): _NOTHING_ENDS,
    },
    Event.REFUSED: {
        (State.NO_DAEMON,): _NO_EXIT_STATUS,
        (State.CALLED, State.STARTING, *_ENDING): Step(State.NO_DAEMON, (Action.REPORT_LOSS,)),
        (State.READY,): _HAS_SERVED,
        (State.DONE,): _NOTHING_ENDS,
    },
    Event.FAILED: {
        (State.NO_DAEMON, State.CALLED, State.STARTING, *_ENDING): Step(State.NO_DAEMON, (Action.REPORT_LOSS,)),
        (State.READY,): _HAS_SERVED,
        (State.DONE,): _NOTHING_ENDS,
    },
    Event.PAUSE: {
        (State.NO_DAEMON,): Step(actions=(Action.REPORT_PAUSE, Action.UNMOUNT_IF_STOPPED)),
        _RUNNING: _ONE_AT_A_TIME,
        (State.DONE,): _OVER,
    },
    Event.HOPELESS: {
        (State.NO_DAEMON,): Step(State.DONE, (Action.GIVE_UP,)),
        _RUNNING: _ONE_AT_A_TIME,
        (State.DONE,): _OVER,
    },
    Event.UNMOUNTED: {
        (State.NO_DAEMON,): Step(State.DONE, (Action.END_WELL,)),
        (*_RUNNING, State.DONE): _IGNORED,  # started meanwhile, it notices by itself
    },
    Event.START_DUE: {
        (State.NO_DAEMON,): Step(actions=(Action.START,)),
        _RUNNING: _ONE_AT_A_TIME,
        (State.DONE,): _OVER,
    },
    Event.NOT_NEEDED: {
        (State.NO_DAEMON,): Step(State.DONE, (Action.REPORT_UNMOUNTED, Action.END_WELL)),
        _RUNNING: _ONE_AT_A_TIME,
        (State.DONE,): _OVER,
    },
    Event.STANDBY_CALLED: {
        (State.NO_DAEMON,): Step(State.CALLED, (Action.SET_DEADLINE,)),
        _RUNNING: _ONE_AT_A_TIME,
        (State.DONE,): _OVER,
    },
    Event.STARTED: {
        (State.NO_DAEMON,): Step(State.STARTING, (Action.SET_DEADLINE,)),
        _RUNNING: _ONE_AT_A_TIME,
        (State.DONE,): _OVER,
    },
    Event.ADOPTED: {
        (State.NO_DAEMON,): Step(State.READY, (Action.EXPECT_WATCHDOG, Action.WANT_STANDBY)),
        _RUNNING: _ONE_AT_A_TIME,
        (State.DONE,): _OVER,
    },
}

TABLE: Final[Mapping[tuple[State, Event], Step]] = {
    (state, event): step for event, cells in _ROWS.items() for states, step in cells.items() for state in states
}
"""Every state with every event."""
assert len(TABLE) == len(State) * len(Event) == sum(len(s) for cells in _ROWS.values() for s in cells), (
    "one cell, and only one, for each state and event"
)
