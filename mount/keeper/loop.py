"""The keeper at work: one daemon at a time, started, listened to, watched and replaced.

Everything is an event of one poll: a signal, a notification, the end of the daemon, or a time that is up. While
the daemon does well the keeper wakes only for its notifications.

state            the daemon's deadline          when it is up
starting         READY within 60 s              hung
called           a first word within 3 s        another 3 s if it has moved, up to 60 s; else SIGKILL: it is stopped
ready            WATCHDOG within the interval   later, if it had no processor; else hung, but only reported if
                                                nothing of the mount is kept: the mount would end with it
stopping         ended within 60 s              hung
hung             ended 0.5 s after SIGABRT      SIGKILL
killed           ended 5 s after SIGKILL        told, once: a disk holds it in the kernel
(none)           the next start                 started

A daemon serves from its first answer on (SERVING), READY or not: its end is no failed start then.
"""

import contextlib
import logging
import math
import os
import select
import signal
import threading
import time
from dataclasses import dataclass
from enum import Enum

from commitlogfs.console.errors import RefusedError, UserError
from commitlogfs.console.exit_status import ExitCode
from commitlogfs.mount.keeper import policy, successor
from commitlogfs.mount.keeper.command_line import Options
from commitlogfs.mount.keeper.descriptors import KeptDescriptors
from commitlogfs.mount.keeper.environment import for_daemon
from commitlogfs.mount.keeper.inbox import Inbox, Message
from commitlogfs.mount.keeper.policy import Restarts
from commitlogfs.mount.keeper.spawn import spawn_watched
from commitlogfs.mount.keeper.standby import Reserve
from commitlogfs.mount.keeper.standby_call import START_TIMEOUT_S, Call
from commitlogfs.mount.linux import fuse_device, logs, mountinfo, notify
from commitlogfs.mount.linux.holders import find_device_holders, find_holders
from commitlogfs.mount.linux.process_activity import Activity, read_activity
from commitlogfs.mount.linux.stop_signals import REOPEN, Signals
from commitlogfs.mount.linux.unmount import unmount
from commitlogfs.mount.location import runtime_directory
from commitlogfs.store.events import log_event

log = logging.getLogger(__name__)

CALL_TIMEOUT_S = 3.0
STOP_TIMEOUT_S = 60.0
ABORT_TIMEOUT_S = 0.5
"""One that is stopped does not see SIGABRT; a broker waits."""
KILL_TIMEOUT_S = 5.0
HOLDERS_TIMEOUT_S = 2.0
_MAX_DIGITS = 18

_SIGNS_OF_LIFE = frozenset({"STATUS", "STOPPING", "WATCHDOG"})
PASSED_ON = ("READY", "STATUS", "STOPPING")
"""What a service manager of the keeper's own is told, too."""


class _State(Enum):
    CALLED = "called"
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    HUNG = "hung"
    KILLED = "killed"


@dataclass(slots=True)
class _Daemon:
    pid: int
    pidfd: int
    is_child: bool
    """An adopted one is not: its exit status is nobody's to see."""
    started: float
    state: _State
    deadline: float
    heard: float
    """When it gave its last sign of life."""
    activity: Activity
    """What it had done when it was last judged to be alive."""
    has_served: bool = False
    """It has answered a request, or was READY."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the keeper's work ended."""

    status: int
    forsaken: bool = False
    """A mount is left that nobody will answer for any more."""
    gave_up: bool = False
    """And it was in use."""


class Keeper:
    """Runs daemons until the mount has ended or nobody can serve it."""

    def __init__(self, options: Options, inbox: Inbox, descriptors: KeptDescriptors, signals: Signals) -> None:
        self._options = options
        self._inbox = inbox
        self._descriptors = descriptors
        self._signals = signals
        self._restarts = Restarts()
        self._daemon: _Daemon | None = None
        self._next_start = math.inf
        self._mounted_once = False
        """A daemon has been READY: from then on the mount is in use."""
        self._stop_wanted: signal.Signals | None = None
        """Until a daemon that serves has shown that it lives after it was sent. So it is also for a successor, once
        that can understand: before, the signal would just end it."""
        self._outcome: Outcome | None = None
        self._asking: threading.Thread | None = None
        """Reads /proc for the holders of the mount."""
        self._poll = select.poll()
        self._reserve = Reserve(options.command, self._poll)
        self._poll.register(inbox.fileno(), select.POLLIN)
        self._poll.register(signals.fileno(), select.POLLIN)

    def run(self) -> Outcome:
        """Blocks. The descriptors are closed at the end."""
        try:
            if self._options.adopt is None:
                self._start(self._options.report_fd)
            else:
                self._adopt(self._options.adopt)
            while self._outcome is None:
                readable = self._wait()
                self._reserve.take_events(readable)
                # Before the end is judged: what the daemon said last has been in the queue since then.
                self._take_messages()
                self._take_signals()
                if self._daemon is not None and self._daemon.pidfd in readable:
                    self._take_end(self._daemon)
                self._run_timers()
            return self._outcome
        finally:
            self._reserve.dismiss()
            self._descriptors.close()

    # --- events -----------------------------------------------------------------------------------------

    def _wait(self) -> frozenset[int]:
        """Until something happens; the descriptors that tell of it."""
        due = min(self._next_start if self._daemon is None else self._daemon.deadline, self._reserve.due)
        remaining = max(0.0, due - time.monotonic())
        events = self._poll.poll(None if math.isinf(remaining) else math.ceil(remaining * 1000))
        return frozenset(fd for fd, _ in events)

    def _take_signals(self) -> None:
        for number in self._signals.take():
            if number is None:
                if self._daemon is None and not self._is_mounted():
                    self._outcome = Outcome(ExitCode.OK)
                continue
            if number == REOPEN:
                self._reopen_logs()
                continue
            daemon = self._daemon
            if daemon is None:
                self._stop_without_daemon(number)
                continue
            if self._mounted_once:
                self._stop_wanted = number
            if not self._mounted_once or daemon.state in (_State.READY, _State.STOPPING):
                self._send(daemon, number)

    def _take_messages(self) -> None:
        for message in self._inbox.receive():
            try:
                if self._daemon is not None and message.pid == self._daemon.pid:
                    self._take_message(self._daemon, message)
                else:
                    fields = ",".join(sorted(message.fields))
                    log_event(log, logging.WARNING, "foreign_message", pid=message.pid, fields=fields)
            finally:
                message.close()

    def _take_message(self, daemon: _Daemon, message: Message) -> None:
        fields = message.fields
        if daemon.state is _State.CALLED:
            daemon.state = _State.STARTING
        if daemon.state is not _State.STARTING and fields.keys() & _SIGNS_OF_LIFE:
            self._stop_wanted = None
        if fields.get("FDSTORE") == "1":
            name = fields.get("FDNAME", "stored")
            fds = message.fds.copy()
            message.fds.clear()
            if not self._descriptors.keep(name, fds):
                log_event(log, logging.ERROR, "descriptors_refused", pid=daemon.pid, fdname=name)
        if fields.get("FDSTOREREMOVE") == "1":
            self._descriptors.drop(fields.get("FDNAME", ""))
        if fields.get(successor.SERVING) == "1" and self._mounted_once:
            daemon.has_served = True
            self._restarts.record_served()
        if fields.get("READY") == "1" and daemon.state is _State.STARTING:
            self._record_ready(daemon)
        if fields.get("STOPPING") == "1" and daemon.state in (_State.STARTING, _State.READY):
            daemon.state, daemon.deadline = _State.STOPPING, time.monotonic() + STOP_TIMEOUT_S
        if fields.get("WATCHDOG") == "1" and daemon.state is _State.READY:
            self._record_alive(daemon)
        extension = fields.get("EXTEND_TIMEOUT_USEC", "")
        if (
            extension.isdecimal()
            and len(extension) <= _MAX_DIGITS
            and daemon.state in (_State.STARTING, _State.STOPPING)
        ):
            daemon.deadline = max(daemon.deadline, time.monotonic() + int(extension) / 1_000_000)
        if fields.get(successor.PREPARE) == "1" and daemon.state is _State.READY and self._options.standby:
            self._reserve.renew(message.fds.pop() if message.fds else None)
        self._pass_on({key: fields[key] for key in PASSED_ON if key in fields})
        # BARRIER=1: its descriptor is closed with the message, when all before it has been worked off.

    def _take_end(self, daemon: _Daemon) -> None:
        self._daemon = None
        self._poll.unregister(daemon.pidfd)
        os.close(daemon.pidfd)
        status = os.waitstatus_to_exitcode(os.waitpid(daemon.pid, 0)[1]) if daemon.is_child else None
        self._judge(status, has_served=daemon.has_served, pid=daemon.pid, seconds=time.monotonic() - daemon.started)

    def _run_timers(self) -> None:
        now = time.monotonic()
        daemon = self._daemon
        if self._outcome is not None:
            return
        if daemon is None:
            if now >= self._next_start:
                self._start_successor()
        elif now >= daemon.deadline:
            self._put_an_end_to(daemon)
        if now >= self._reserve.due:
            self._reserve.start()

    # --- starting and ending ----------------------------------------------------------------------------

    def _start(self, report_fd: int | None = None) -> None:
        """A start that fails counts as a daemon that ended at once."""
        self._next_start = math.inf
        self._listened_anew()
        command = list(self._options.command)
        command += ["--report-fd", str(report_fd)] if report_fd is not None else []
        variables = for_daemon(self._options, self._inbox.path)
        started = time.monotonic()
        process = self._reserve.call(Call(variables, self._descriptors.items()))
        stood_by = process is not None
        try:
            if process is None:
                process = spawn_watched(command, variables, self._descriptors.items(), inherited=report_fd)
        except OSError as error:
            log_event(log, logging.ERROR, "daemon_not_started", repeat_key=started, reason=str(error))
            self._judge(1, has_served=False, pid=0, seconds=0.0)
            return
        finally:
            if report_fd is not None:
                os.close(report_fd)  # whoever reads it waits for the last copy
        self._daemon = _Daemon(
            process.pid,
            process.pidfd,
            is_child=True,
            started=started,
            state=_State.CALLED if stood_by else _State.STARTING,
            deadline=started + (CALL_TIMEOUT_S if stood_by else START_TIMEOUT_S),
            heard=started,
            activity=read_activity(process.pid),
        )
        self._poll.register(process.pidfd, select.POLLIN)
        pid, count = process.pid, len(self._descriptors)
        log_event(
            log, logging.INFO, "daemon_started", repeat_key=pid, pid=pid, descriptors=count, stood_by=stood_by
        )

    def _adopt(self, pid: int) -> None:
        """A daemon adopts a keeper once it is READY, so the mount is in use."""
        self._mounted_once = True
        now = time.monotonic()
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            self._judge(None, has_served=True, pid=pid, seconds=0.0)
            return
        self._daemon = _Daemon(
            pid,
            pidfd,
            is_child=False,
            started=now,
            state=_State.READY,
            deadline=now + self._watchdog_s,
            heard=now,
            activity=read_activity(pid),
            has_served=True,
        )
        self._poll.register(pidfd, select.POLLIN)
        self._want_reserve()
        log_event(log, logging.INFO, "daemon_adopted", repeat_key=pid, pid=pid, descriptors=len(self._descriptors))

    def _start_successor(self) -> None:
        """Nobody is needed where an operator has unmounted meanwhile, and a daemon would mount anew."""
        if self._is_mounted():
            self._start()
        else:
            log_event(log, logging.INFO, "unmounted_meanwhile", path=self._options.mountpoint)
            self._outcome = Outcome(ExitCode.OK)

    def _record_ready(self, daemon: _Daemon) -> None:
        now = time.monotonic()
        self._set_trouble("")
        daemon.state, daemon.has_served = _State.READY, True
        self._record_heard(daemon, now)
        self._mounted_once = True
        self._restarts.record_served()
        self._want_reserve()
        seconds = round(now - daemon.started, 3)
        log_event(log, logging.INFO, "daemon_ready", repeat_key=daemon.pid, pid=daemon.pid, seconds=seconds)
        if self._stop_wanted is not None:
            self._send(daemon, self._stop_wanted)

    def _want_reserve(self) -> None:
        if self._options.standby:
            self._reserve.want()

    def _record_alive(self, daemon: _Daemon) -> None:
        if math.isinf(daemon.deadline) and self._options.watchdog_s:
            log_event(log, logging.WARNING, "daemon_answers_again", repeat_key=time.monotonic(), pid=daemon.pid)
        self._record_heard(daemon, time.monotonic())

    def _record_heard(self, daemon: _Daemon, now: float) -> None:
        daemon.heard, daemon.deadline = now, now + self._watchdog_s
        if self._options.watchdog_s:
            daemon.activity = read_activity(daemon.pid)

    def _put_an_end_to(self, daemon: _Daemon) -> None:
        now = time.monotonic()
        if daemon.state in (_State.CALLED, _State.STARTING, _State.READY) and self._listened_anew():
            # Silence proves nothing where no word could be heard.
            daemon.deadline = now + (self._watchdog_s if daemon.state is _State.READY else START_TIMEOUT_S)
        elif daemon.state in (_State.CALLED, _State.READY) and self._is_only_slow(daemon, now):
            pass
        elif daemon.state is _State.READY and not self._descriptors:
            daemon.deadline = math.inf
            reason = "does not answer, and is not replaced: the mount would end with it"
            log_event(
                log, logging.ERROR, "hung_daemon_without_takeover", repeat_key=now, pid=daemon.pid, reason=reason
            )
            self._pass_on({"STATUS": f"daemon {daemon.pid} {reason}"})
        elif daemon.state is _State.KILLED:
            daemon.deadline = math.inf
            log_event(log, logging.ERROR, "daemon_cannot_be_killed", repeat_key=daemon.pid, pid=daemon.pid)
        elif daemon.state in (_State.CALLED, _State.HUNG):
            if daemon.state is _State.CALLED:
                log_event(log, logging.ERROR, "standby_not_heard", repeat_key=daemon.pid, pid=daemon.pid)
            daemon.state, daemon.deadline = _State.KILLED, now + KILL_TIMEOUT_S
            self._send(daemon, signal.SIGKILL)
        else:
            state = daemon.state.value
            log_event(log, logging.ERROR, "daemon_hung", repeat_key=daemon.pid, pid=daemon.pid, state=state)
            daemon.state, daemon.deadline = _State.HUNG, now + ABORT_TIMEOUT_S
            self._send(daemon, signal.SIGABRT)

    def _is_only_slow(self, daemon: _Daemon, now: float) -> bool:
        """Whether it is waited for a little longer."""
        activity = read_activity(daemon.pid)
        if daemon.state is _State.CALLED:
            moved = activity.has_moved_since(daemon.activity)
            more = CALL_TIMEOUT_S if moved and now - daemon.started < START_TIMEOUT_S else 0.0
        else:
            more = policy.patience(
                silent_s=now - daemon.heard,
                starved_s=activity.starved_since(daemon.activity),
                late_s=now - daemon.deadline,
                interval_s=self._watchdog_s,
            )
        if more:
            state, seconds = daemon.state.value, round(now - daemon.heard, 3)
            key = (daemon.pid, daemon.heard)
            log_event(
                log, logging.WARNING, "daemon_slow", repeat_key=key, pid=daemon.pid, state=state, silent_s=seconds
            )
            daemon.deadline, daemon.activity = now + more, activity
        return bool(more)

    def _listened_anew(self) -> bool:
        """Whether messages had no way here: the runtime folder has been cleared away."""
        if self._inbox.is_reachable():
            return False
        try:
            runtime_directory.ensure_runtime_folder()
            self._inbox.listen_anew()
        except (UserError, OSError) as error:
            log_event(log, logging.ERROR, "cannot_listen", path=self._inbox.path, reason=str(error))
        else:
            log_event(log, logging.WARNING, "listening_anew", path=self._inbox.path)
        return True

    def _judge(self, status: int | None, *, has_served: bool, pid: int, seconds: float) -> None:
        """What follows from the end of a daemon."""
        mounted = self._is_mounted()
        how = _describe(status)
        if status == 0 or not mounted:
            # A refusal has been told in the daemon's own words.
            told = not self._mounted_once and policy.is_refusal(status)
            level = logging.DEBUG if told else logging.INFO if status in (0, None) else logging.ERROR
            log_event(log, level, "daemon_ended", repeat_key=pid, pid=pid, how=how, mounted=mounted)
            # Killed, or on its way to a successor, when its mount was gone: that has ended as somebody wanted.
            cut_short = status is not None and (status < 0 or status == ExitCode.HANDED_OVER)
            ended_well = cut_short and self._mounted_once and not mounted
            self._outcome = Outcome(ExitCode.OK if ended_well else _as_shell(status), forsaken=mounted)
            return
        goes_on = status == ExitCode.HANDED_OVER and len(self._descriptors) > 0
        if not self._mounted_once and not goes_on:
            log_event(log, logging.ERROR, "daemon_failed_to_start", repeat_key=pid, pid=pid, how=how)
            self._outcome = Outcome(_as_shell(status), forsaken=True)
            return
        if has_served and not self._descriptors:
            reason = "nothing of it was kept: a daemon mounts anew as soon as nobody holds it"
            path = self._options.mountpoint
            log_event(log, logging.ERROR, "mount_ended", repeat_key=pid, path=path, reason=reason)
        delay = self._restarts.delay_after(status, has_served=has_served, is_held=self._is_held)
        level = logging.INFO if goes_on else logging.ERROR
        event = "daemon_handed_over" if goes_on else "daemon_died" if has_served else "successor_failed"
        if not has_served and policy.is_refusal(status):
            event = "successor_refused"
        log_event(
            log, level, event, repeat_key=pid, pid=pid, how=how, lived_s=round(seconds, 3), next_start_s=delay
        )
        if delay:
            self._report_trouble(how, delay)
        if delay is None:
            reason = f"{policy.MAX_FAILED_STARTS + 1} daemons in a row did not serve, and nobody holds the mount"
            log_event(log, logging.ERROR, "keeper_gives_up", path=self._options.mountpoint, reason=reason)
            self._pass_on({"STATUS": f"gave up: {reason}"})
            self._outcome = Outcome(ExitCode.FINDINGS, forsaken=True, gave_up=True)
            return
        if goes_on and not self._reserve.is_renewed:
            self._reserve.dismiss()  # `restart` means what is installed now
        self._next_start = time.monotonic() + delay
        if delay and self._stop_wanted is not None:
            number, self._stop_wanted = self._stop_wanted, None
            self._stop_without_daemon(number)

    def _report_trouble(self, how: str, delay: float) -> None:
        """That nobody serves the mount for now, wherever its state can be read: to the service manager, and in the
        lock file, for a command that finds no daemon."""
        count = max(1, self._restarts.failed_in_row)
        text = (
            f"no daemon serves {self._options.mountpoint}: {count} in a row did not take over (the last: {how}); "
            f"next try in {delay:g} s"
        )
        if self._restarts.is_hopeless:
            log_event(log, logging.ERROR, "mount_held_without_daemon", path=self._options.mountpoint, text=text)
        self._pass_on({"STATUS": text})
        self._set_trouble(text)

    # --- small things -----------------------------------------------------------------------------------

    @property
    def _watchdog_s(self) -> float:
        return self._options.watchdog_s or math.inf

    def _fuse_devices(self) -> list[int]:
        return [fd for _, fd in self._descriptors.items() if fuse_device.is_fuse_device(fd)]

    def _is_mounted(self) -> bool:
        """Whether anybody may have files of the mount open, wherever it is by now; else whether a dead one of this
        name is there to be cleared away, other views of the path stacked above it or not. Asked of /proc alone."""
        return any(map(fuse_device.is_connected, self._fuse_devices())) or any(
            entry.mountpoint == self._options.mountpoint
            and mountinfo.is_commitlogfs(entry)
            and entry.source == self._options.name
            for entry in mountinfo.read_mounts()
        )

    def _is_held(self) -> bool:
        """Whether a process holds the mount. /proc is read in a thread: a process that waits for the mount may make
        a reader of its mappings wait, too. No answer is a yes."""
        if self._asking is not None and self._asking.is_alive():
            return True
        answers: list[bool] = []

        def ask() -> None:
            devices = {fuse_device.mount_device(fd) for fd in self._fuse_devices()} - {None}
            seen = {entry.device for entry in mountinfo.read_mounts()}
            # Not to be seen, but connected: only its holders keep it alive.
            held = bool(devices - seen) or any(find_device_holders(device) for device in devices if device)
            answers.append(held or (not devices and bool(find_holders(self._options.mountpoint))))

        self._asking = threading.Thread(target=ask, name="holders", daemon=True)
        self._asking.start()
        self._asking.join(HOLDERS_TIMEOUT_S)
        return not answers or answers[0]

    def _set_trouble(self, text: str) -> None:
        with contextlib.suppress(OSError, UserError):
            runtime_directory.record_trouble(self._options.name, text)

    def _send(self, daemon: _Daemon, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(daemon.pidfd, number)

    def _reopen_logs(self) -> None:
        """Here, and in every process that writes to the same file."""
        logs.reopen_soon()
        if self._daemon is not None:
            self._send(self._daemon, REOPEN)
        self._reserve.send(REOPEN)

    def _stop_without_daemon(self, number: signal.Signals) -> None:
        """Between two daemons a plain unmount needs none, unless pages wait to be written: in a thread, then."""
        log_event(log, logging.INFO, "stop_requested", signal=number.name, repeat_key=time.monotonic())
        threading.Thread(target=self._unmount, name="unmount", daemon=True).start()

    def _unmount(self) -> None:
        try:
            self._require_in_sight()
            unmount(self._options.mountpoint)
        except Exception as error:  # whatever it is, somebody waits for a word
            log_event(log, logging.ERROR, "stop_refused", reason=str(error))
        else:
            log_event(log, logging.INFO, "unmounted", path=self._options.mountpoint)
        self._signals.wake()

    def _require_in_sight(self) -> None:
        """Raises RefusedError if what one sees at the mountpoint is something else."""
        entry = mountinfo.find_mount(self._options.mountpoint)
        kept = {fuse_device.mount_device(fd) for fd in self._fuse_devices()} or {None}
        ours = entry is not None and mountinfo.is_commitlogfs(entry) and entry.source == self._options.name
        if entry is None or not ours or not kept & {None, entry.device}:
            raise RefusedError(f"{self._options.mountpoint}: not to be seen there, so it is not unmounted")

    def _pass_on(self, fields: dict[str, str]) -> None:
        if not fields:
            return
        lines = [f"{key}={value}" for key, value in fields.items()]
        with contextlib.suppress(OSError, ValueError):
            notify.notify("\n".join([*lines, f"MAINPID={os.getpid()}"]))


def _describe(status: int | None) -> str:
    if status is None:
        return "unknown"
    if status >= 0:
        return f"exit {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:  # a real-time one
        return f"signal {-status}"


def _as_shell(status: int | None) -> int:
    """An exit status of ours that says the same; what is unknown went well, the mount being gone."""
    if status is None:
        return 0
    return status if status >= 0 else 128 - status
