"""The keeper at work: turns messages, signals, ends of processes and deadlines into events, and carries out what
the table of `mount.keeper.transitions` says.

Everything comes from one poll. While the daemon works normally the keeper wakes only for its notifications.
"""

import contextlib
import logging
import math
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from commitlogfs.console.errors import UserError
from commitlogfs.console.exit_status import ExitCode
from commitlogfs.mount.keeper import policy
from commitlogfs.mount.keeper.descriptors import KeptDescriptors
from commitlogfs.mount.keeper.inbox import Inbox, Message
from commitlogfs.mount.keeper.kept_mount import KeptMount
from commitlogfs.mount.keeper.options import Options
from commitlogfs.mount.keeper.policy import Outcome, Restarts
from commitlogfs.mount.keeper.spawn import Process, spawn_watched
from commitlogfs.mount.keeper.standby import Standby
from commitlogfs.mount.keeper.standby_call import Call
from commitlogfs.mount.keeper.transitions import DEADLINE_EVENTS, TABLE, Action, Event, State, time_limits
from commitlogfs.mount.keeper.watched_daemon import End, WatchedDaemon
from commitlogfs.mount.linux import logs, notify
from commitlogfs.mount.linux.process_activity import Activity, read_activity
from commitlogfs.mount.linux.stop_signals import REOPEN, Signals
from commitlogfs.mount.linux.unmount import unmount
from commitlogfs.mount.location import runtime_directory
from commitlogfs.store.events import log_event
from commitlogfs.store.timing import KeeperTiming

log = logging.getLogger(__name__)

PASSED_ON = ("READY", "STATUS", "STOPPING")
"""Fields that a service manager of the keeper itself gets, too."""

_LOSSES: Mapping[Event, tuple[int, str]] = {
    Event.HANDED_OVER: (logging.INFO, "daemon_handed_over"),
    Event.DIED: (logging.ERROR, "daemon_died"),
    Event.DIED_WITH_MOUNT: (logging.ERROR, "daemon_died"),
    Event.REFUSED: (logging.ERROR, "successor_refused"),
    Event.FAILED: (logging.ERROR, "successor_failed"),
}
"""Level and name in the log of an end after which the next daemon is started."""


_NO_END = End(None)


@dataclass(frozen=True, slots=True)
class _Details:
    """Details that only some events have."""

    number: signal.Signals = signal.SIGTERM
    """The stop signal."""
    seconds: float = 0.0
    """To wait longer."""
    message: Message | None = None
    state: State = State.NO_DAEMON
    """The state in which a deadline passed."""
    activity: Activity | None = None
    """Progress of a slow daemon."""
    loss: Event = Event.DIED
    """The kind of `end`."""
    end: End = _NO_END
    mounted: bool = True
    """Whether the mount is there after the end."""
    delay_s: float | None = None
    """Until the next start; None: none follows."""


_NO_DETAILS = _Details()


class Keeper:
    """Runs daemons until the mount has ended or no daemon can serve it."""

    def __init__(
        self,
        options: Options,
        inbox: Inbox,
        descriptors: KeptDescriptors,
        signals: Signals,
        timing: KeeperTiming,
    ) -> None:
        self._options = options
        self._inbox = inbox
        self._descriptors = descriptors
        self._signals = signals
        self._mount = KeptMount(options.name, options.mountpoint, descriptors, timing)
        self._timing = timing
        self._limits_s = time_limits(timing)
        self._restarts = Restarts(timing)
        self.state = State.NO_DAEMON
        self._present: WatchedDaemon | None = None
        """None in the states NO_DAEMON and DONE."""
        self._set_aside: list[WatchedDaemon] = []
        """Killed daemons that disks hold in the kernel. Their successors leave those disks alone."""
        self._report_fd = options.report_fd
        self._next_start = math.inf
        self._in_use = False
        """Whether a daemon has been ready: from then on the mount is in use."""
        self._stop: signal.Signals | None = None
        """The stop signal that is remembered until a daemon that serves has shown that it lives after it was sent;
        a successor gets it when it is ready. Before, the signal would only end it."""
        self._outcome: Outcome | None = None
        self._poll = select.poll()
        self._standby = Standby(options.command, self._poll, timing)
        self._poll.register(inbox.fileno(), select.POLLIN)
        self._poll.register(signals.fileno(), select.POLLIN)
        self.actions = self._implementations()

    def run(self) -> Outcome:
        """Blocks. The descriptors are closed at the end."""
        try:
            if self._options.adopt is None:
                self.take(Event.START_DUE)
            else:
                self._adopt(self._options.adopt)
            while self._outcome is None:
                readable = self._wait()
                self._standby.take_events(readable)
                # Before an end is evaluated: the daemon's last messages have been in the queue since then.
                self._take_messages()
                self._take_signals()
                if self._present is not None and self._present.pidfd in readable:
                    self._take_end(self._present)
                self._take_late_ends(readable)
                self._take_timers()
            return self._outcome
        finally:
            self._standby.dismiss()
            self._descriptors.close()

    def take(self, event: Event, about: _Details = _NO_DETAILS) -> None:
        """Change the state and act as the table says. An impossible event is reported and changes nothing."""
        step = TABLE[self.state, event]
        if step.impossible:
            state = self.state.value
            log_event(log, logging.ERROR, "keeper_event_impossible", state=state, text=event.value)
        self.state = step.next or self.state
        for action in step.actions:
            self.actions[action](about)

    # --- the outside becomes events -----------------------------------------------------------------------

    def _wait(self) -> frozenset[int]:
        """Wait until something happens; the descriptors that are readable."""
        due = min(self._next_start if self._present is None else self._present.deadline, self._standby.due)
        remaining = max(0.0, due - time.monotonic())
        events = self._poll.poll(None if math.isinf(remaining) else math.ceil(remaining * 1000))
        return frozenset(fd for fd, _ in events)

    def _take_signals(self) -> None:
        for number in self._signals.take():
            if number is None:
                if not self._mount.exists():
                    self.take(Event.UNMOUNTED)
            elif number == REOPEN:
                self._reopen_logs()
            else:
                self.take(Event.STOP if self._in_use else Event.EARLY_STOP, _Details(number=number))

    def _take_messages(self) -> None:
        for message in self._inbox.receive():
            try:
                if self._present is not None and message.pid == self._present.pid:
                    self._take_message(message)
                else:
                    fields = ",".join(sorted(message.fields))
                    log_event(log, logging.WARNING, "foreign_message", pid=message.pid, fields=fields)
            finally:
                message.close()

    def _take_message(self, message: Message) -> None:
        fields = message.fields
        self._keep_descriptors(message)
        about = _Details(message=message, seconds=policy.extension_s(fields))
        for event in policy.message_events(fields, in_use=self._in_use, with_standby=self._options.standby):
            self.take(event, about)
        self._pass_on({key: fields[key] for key in PASSED_ON if key in fields})
        # BARRIER=1: its descriptor is closed with the message, when all before it has been done.

    def _keep_descriptors(self, message: Message) -> None:
        fields = message.fields
        if fields.get("FDSTORE") == "1":
            name = fields.get("FDNAME", "stored")
            fds = message.fds.copy()
            message.fds.clear()
            if not self._descriptors.keep(name, fds):
                log_event(log, logging.ERROR, "descriptors_refused", pid=message.pid, fdname=name)
        if fields.get("FDSTOREREMOVE") == "1":
            self._descriptors.drop(fields.get("FDNAME", ""))

    def _take_end(self, daemon: WatchedDaemon) -> None:
        self._present = None
        self._poll.unregister(daemon.pidfd)
        self._evaluate_end(daemon.collect())

    def _take_late_ends(self, readable: frozenset[int]) -> None:
        for daemon in [daemon for daemon in self._set_aside if daemon.pidfd in readable]:
            self._set_aside.remove(daemon)
            self._poll.unregister(daemon.pidfd)
            end = daemon.collect()
            log_event(log, logging.WARNING, "held_daemon_ended", repeat_key=end.pid, pid=end.pid, how=end.how)
            if self._present is None and not math.isinf(self._next_start):
                self._next_start = time.monotonic()  # a start may have been refused because of it

    def _evaluate_end(self, end: End) -> None:
        mounted = self._mount.exists()
        kept = len(self._descriptors) > 0
        event = policy.end_event(
            end.status, mounted=mounted, in_use=self._in_use, kept=kept, has_served=end.has_served
        )
        if event not in _LOSSES:
            self.take(event, _Details(end=end, mounted=mounted))
            return
        delay_s = self._restarts.delay_after(end.status, has_served=end.has_served, is_held=self._mount.is_held)
        about = _Details(loss=event, end=end, delay_s=delay_s)
        self.take(event, about)
        if delay_s is None:
            self.take(Event.HOPELESS)
            return
        self._next_start = time.monotonic() + delay_s
        if delay_s:
            self.take(Event.PAUSE, about)

    def _take_timers(self) -> None:
        now = time.monotonic()
        if self._outcome is not None:
            return
        if self._present is not None:
            if now >= self._present.deadline:
                self._take_deadline(self._present, now)
        elif now >= self._next_start:
            # An operator may have unmounted meanwhile; a daemon would mount again.
            self.take(Event.START_DUE if self._mount.exists() else Event.NOT_NEEDED)
        if now >= self._standby.due:
            self._standby.start()

    def _take_deadline(self, daemon: WatchedDaemon, now: float) -> None:
        """The first of DEADLINE_EVENTS that is possible in this state and true."""
        activity, seconds = daemon.activity, 0.0
        for event in DEADLINE_EVENTS:
            if TABLE[self.state, event].impossible:
                continue
            match event:
                case Event.SOCKET_GONE:
                    is_true = self._listened_again()
                case Event.SLOW:
                    activity = read_activity(daemon.pid)
                    seconds = self._patience(daemon, activity, now)
                    is_true = seconds > 0
                case Event.UNREPLACEABLE:
                    is_true = not self._descriptors
                case Event.UNKILLABLE:
                    is_true = self._in_use and len(self._descriptors) > 0
                case _:
                    is_true = True
            if is_true:
                self.take(event, _Details(state=self.state, seconds=seconds, activity=activity))
                return

    def _patience(self, daemon: WatchedDaemon, activity: Activity, now: float) -> float:
        """Seconds to wait longer for a daemon whose deadline has passed; 0 if it does not run."""
        if self.state is State.CALLED:
            is_moving = activity.has_moved_since(daemon.activity)
            may_move = now - daemon.started < self._limits_s[State.STARTING]
            return self._limits_s[State.CALLED] if is_moving and may_move else 0.0
        return policy.patience(
            silent_s=now - daemon.heard,
            starved_s=activity.starved_since(daemon.activity),
            late_s=now - daemon.deadline,
            interval_s=self._watchdog_s,
            longest_s=self._timing.silence_s,
        )

    def _listened_again(self) -> bool:
        """Whether messages could not arrive, because the runtime directory has been cleared away."""
        if self._inbox.is_reachable():
            return False
        try:
            runtime_directory.ensure_runtime_directory()
            self._inbox.listen_again()
        except (UserError, OSError) as error:
            log_event(log, logging.ERROR, "cannot_listen", path=self._inbox.path, reason=str(error))
        else:
            log_event(log, logging.WARNING, "listening_anew", path=self._inbox.path)
        return True

    # --- actions --------------------------------------------------------------------------------------------

    def _implementations(self) -> Mapping[Action, Callable[[_Details], None]]:
        """The method that carries out each action."""
        return {
            Action.START: lambda _: self._start(),
            Action.WANT_STANDBY: lambda _: self._want_standby(),
            Action.RELOAD_STANDBY: self._reload_standby,
            Action.DISMISS_OLD_STANDBY: lambda _: self._dismiss_old_standby(),
            Action.RECORD_SERVED: lambda _: self._record_served(),
            Action.RECORD_READY: lambda _: self._record_ready(),
            Action.REPORT_ANSWER: lambda _: self._report_answer(),
            Action.EXPECT_WATCHDOG: lambda _: self._daemon.expect_watchdog(self._watchdog_s),
            Action.SET_DEADLINE: lambda _: self._daemon.allow(self._limits_s[self.state]),
            Action.EXTEND_DEADLINE: self._extend_deadline,
            Action.GRANT_START_TIME: lambda _: self._daemon.allow(self._limits_s[State.STARTING]),
            Action.GRANT_INTERVAL: lambda _: self._daemon.allow(self._watchdog_s),
            Action.WAIT_LONGER: self._wait_longer,
            Action.CLEAR_DEADLINE: lambda _: self._daemon.allow(math.inf),
            Action.REPORT_UNREPLACEABLE: lambda _: self._report_unreplaceable(),
            Action.REPORT_SILENT_STANDBY: lambda _: self._report_silent_standby(),
            Action.REPORT_HUNG: self._report_hung,
            Action.REPORT_UNKILLABLE: lambda _: self._report_unkillable(),
            Action.SET_ASIDE: lambda _: self._leave_to_itself(),
            Action.ABORT: lambda _: self._daemon.send(signal.SIGABRT),
            Action.KILL: lambda _: self._daemon.send(signal.SIGKILL),
            Action.REMEMBER_STOP: self._remember_stop,
            Action.FORGET_STOP: lambda _: self._forget_stop(),
            Action.SEND_STOP: lambda about: self._daemon.send(about.number),
            Action.SEND_REMEMBERED_STOP: lambda _: self._send_remembered_stop(),
            Action.UNMOUNT: lambda about: self._begin_unmount(about.number),
            Action.UNMOUNT_IF_STOPPED: lambda _: self._unmount_if_stopped(),
            Action.REPORT_LOSS: self._report_loss,
            Action.REPORT_DEAD_MOUNT: self._report_dead_mount,
            Action.REPORT_PAUSE: self._report_pause,
            Action.REPORT_UNMOUNTED: lambda _: self._report_unmounted(),
            Action.END_WITH_MOUNT: self._end_with_mount,
            Action.END_FAILED: self._end_failed,
            Action.END_WELL: lambda _: self._end_well(),
            Action.GIVE_UP: lambda _: self._give_up(),
        }

    @property
    def _daemon(self) -> WatchedDaemon:
        assert self._present is not None, f"no daemon in state {self.state.value}"
        return self._present

    @property
    def _watchdog_s(self) -> float:
        return self._options.watchdog_s or math.inf

    def _start(self) -> None:
        """A start that fails counts as a daemon that ended at once."""
        self._next_start = math.inf
        self._listened_again()
        report_fd, self._report_fd = self._report_fd, None
        command = list(self._options.command)
        command += ["--report-fd", str(report_fd)] if report_fd is not None else []
        variables = self._options.daemon_variables(self._inbox.path)
        started = time.monotonic()
        process = self._standby.call(Call(variables, self._descriptors.items()))
        stood_by = process is not None
        try:
            if process is None:
                process = spawn_watched(command, variables, self._descriptors.items(), inherited=report_fd)
        except OSError as error:
            log_event(log, logging.ERROR, "daemon_not_started", repeat_key=started, reason=str(error))
            self._evaluate_end(End(1))
            return
        finally:
            if report_fd is not None:
                os.close(report_fd)  # its reader waits until the last copy is closed
        self._watch(WatchedDaemon(process, is_child=True, started=started))
        pid, count = process.pid, len(self._descriptors)
        log_event(
            log, logging.INFO, "daemon_started", repeat_key=pid, pid=pid, descriptors=count, stood_by=stood_by
        )
        self.take(Event.STANDBY_CALLED if stood_by else Event.STARTED)

    def _adopt(self, pid: int) -> None:
        """A daemon starts a keeper only when it is ready, so the mount is in use."""
        self._in_use = True
        try:
            process = Process(pid, os.pidfd_open(pid))
        except ProcessLookupError:
            self._evaluate_end(End(None, pid, has_served=True))
            return
        self._watch(WatchedDaemon(process, is_child=False, has_served=True))
        log_event(log, logging.INFO, "daemon_adopted", repeat_key=pid, pid=pid, descriptors=len(self._descriptors))
        self.take(Event.ADOPTED)

    def _watch(self, daemon: WatchedDaemon) -> None:
        self._present = daemon
        self._poll.register(daemon.pidfd, select.POLLIN)

    def _want_standby(self) -> None:
        if self._options.standby:
            self._standby.want()

    def _reload_standby(self, about: _Details) -> None:
        fds = about.message.fds if about.message is not None else []
        self._standby.reload(fds.pop() if fds else None)

    def _dismiss_old_standby(self) -> None:
        if not self._standby.is_reloaded:
            self._standby.dismiss()

    def _record_served(self) -> None:
        self._daemon.has_served = True
        self._restarts.record_served()

    def _record_ready(self) -> None:
        daemon = self._daemon
        self._set_trouble("")
        self._record_served()
        is_first, self._in_use = not self._in_use, True
        seconds = round(time.monotonic() - daemon.started, 3)
        if is_first and self._options.log_level <= logging.INFO and sys.stdout.isatty():
            sys.stdout.write(f"{self._options.mountpoint}: mounted; Ctrl-C unmounts it\n")
            sys.stdout.flush()
        log_event(log, logging.INFO, "daemon_ready", repeat_key=daemon.pid, pid=daemon.pid, seconds=seconds)

    def _report_answer(self) -> None:
        daemon = self._daemon
        if math.isinf(daemon.deadline) and self._options.watchdog_s:
            log_event(log, logging.WARNING, "daemon_answers_again", repeat_key=time.monotonic(), pid=daemon.pid)

    def _extend_deadline(self, about: _Details) -> None:
        self._daemon.deadline = max(self._daemon.deadline, time.monotonic() + about.seconds)

    def _wait_longer(self, about: _Details) -> None:
        daemon, state = self._daemon, self.state.value
        key, silent_s = (daemon.pid, daemon.heard), round(time.monotonic() - daemon.heard, 3)
        log_event(
            log, logging.WARNING, "daemon_slow", repeat_key=key, pid=daemon.pid, state=state, silent_s=silent_s
        )
        daemon.allow(about.seconds)
        daemon.activity = about.activity or daemon.activity

    def _report_unreplaceable(self) -> None:
        pid, now = self._daemon.pid, time.monotonic()
        reason = (
            "does not answer, and is not replaced: the mount would end with it; see `dmesg` for a disk that hangs, "
            f"else stop the broker, `kill -9 {pid}`, and mount again"
        )
        log_event(log, logging.ERROR, "hung_daemon_without_takeover", repeat_key=now, pid=pid, reason=reason)
        self._pass_on({"STATUS": f"daemon {pid} {reason}"})

    def _report_silent_standby(self) -> None:
        pid = self._daemon.pid
        log_event(log, logging.ERROR, "standby_not_heard", repeat_key=pid, pid=pid)

    def _report_hung(self, about: _Details) -> None:
        pid, state = self._daemon.pid, about.state.value
        log_event(log, logging.ERROR, "daemon_hung", repeat_key=pid, pid=pid, state=state)

    def _report_unkillable(self) -> None:
        pid = self._daemon.pid
        log_event(log, logging.ERROR, "daemon_cannot_be_killed", repeat_key=pid, pid=pid)

    def _leave_to_itself(self) -> None:
        self._set_aside.append(self._daemon)
        self._present = None
        self._next_start = time.monotonic()

    def _remember_stop(self, about: _Details) -> None:
        self._stop = about.number

    def _forget_stop(self) -> None:
        self._stop = None

    def _send_remembered_stop(self) -> None:
        if self._stop is not None:
            self._daemon.send(self._stop)

    def _unmount_if_stopped(self) -> None:
        if self._stop is not None:
            number, self._stop = self._stop, None
            self._begin_unmount(number)

    def _begin_unmount(self, number: signal.Signals) -> None:
        """In a thread: a plain unmount needs no daemon, unless pages wait to be written."""
        log_event(log, logging.INFO, "stop_requested", signal=number.name, repeat_key=time.monotonic())
        threading.Thread(target=self._unmount, name="unmount", daemon=True).start()

    def _unmount(self) -> None:
        try:
            self._mount.require_visible()
            unmount(self._options.mountpoint)
        except Exception as error:  # whatever it is, an operator waits for the answer
            log_event(log, logging.ERROR, "stop_refused", reason=str(error))
        else:
            log_event(log, logging.INFO, "unmounted", path=self._options.mountpoint)
        self._signals.wake()

    def _report_loss(self, about: _Details) -> None:
        level, event = _LOSSES[about.loss]
        pid, how, lived_s = about.end.pid, about.end.how, round(about.end.lived_s, 3)
        log_event(log, level, event, repeat_key=pid, pid=pid, how=how, lived_s=lived_s, next_start_s=about.delay_s)

    def _report_dead_mount(self, about: _Details) -> None:
        reason = "the mount is dead; end the processes that use it (stop the broker), and a daemon mounts again"
        path = self._options.mountpoint
        log_event(log, logging.ERROR, "mount_ended", repeat_key=about.end.pid, path=path, reason=reason)

    def _report_pause(self, about: _Details) -> None:
        """Wherever its state can be read: to the service manager, and in the lock file, for a command that finds no
        daemon."""
        count = max(1, self._restarts.failed_in_row)
        text = (
            f"no daemon serves {self._options.mountpoint}: failed starts: {count} (the last: {about.end.how}); "
            f"see the daemon's log for the reason; next try in {about.delay_s:g} s"
        )
        if self._restarts.is_hopeless:
            log_event(log, logging.ERROR, "mount_held_without_daemon", path=self._options.mountpoint, text=text)
        self._pass_on({"STATUS": text})
        self._set_trouble(text)

    def _report_unmounted(self) -> None:
        log_event(log, logging.INFO, "unmounted_meanwhile", path=self._options.mountpoint)

    def _end_with_mount(self, about: _Details) -> None:
        pid, status, how = about.end.pid, about.end.status, about.end.how
        # A daemon that refuses has reported why.
        is_reported = not self._in_use and policy.is_refusal(status)
        level = logging.DEBUG if is_reported else logging.INFO if status in (0, None) else logging.ERROR
        log_event(log, level, "daemon_ended", repeat_key=pid, pid=pid, how=how, mounted=about.mounted)
        self._outcome = policy.outcome_of_end(status, mounted=about.mounted, in_use=self._in_use)

    def _end_failed(self, about: _Details) -> None:
        pid, how = about.end.pid, about.end.how
        log_event(log, logging.ERROR, "daemon_failed_to_start", repeat_key=pid, pid=pid, how=how)
        self._outcome = Outcome(policy.as_shell(about.end.status), leaves_mount=True)

    def _end_well(self) -> None:
        self._outcome = Outcome(ExitCode.OK)

    def _give_up(self) -> None:
        reason = (
            f"{policy.MAX_FAILED_STARTS + 1} starts of the daemon failed, and no process uses the mount, so it is "
            "detached; see the daemon's log for the reason, and mount again"
        )
        log_event(log, logging.ERROR, "keeper_gives_up", path=self._options.mountpoint, reason=reason)
        self._pass_on({"STATUS": f"gave up: {reason}"})
        self._outcome = Outcome(ExitCode.FINDINGS, leaves_mount=True, in_use=True)

    def _set_trouble(self, text: str) -> None:
        with contextlib.suppress(OSError, UserError):
            runtime_directory.record_trouble(self._options.name, text)

    def _reopen_logs(self) -> None:
        """Here, and in every process that writes to the same file."""
        logs.reopen_soon()
        if self._present is not None:
            self._present.send(REOPEN)
        self._standby.send(REOPEN)

    def _pass_on(self, fields: Mapping[str, str]) -> None:
        if not fields:
            return
        lines = [f"{key}={value}" for key, value in fields.items()]
        with contextlib.suppress(OSError, ValueError):
            notify.notify("\n".join([*lines, f"MAINPID={os.getpid()}"]))
