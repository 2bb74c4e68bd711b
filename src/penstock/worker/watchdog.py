"""Ends a process whose event loop is blocked, before its lease is over, and says who blocked it.

A step that never lets go of the event loop (an endless loop, a long computation, `time.sleep`) stops renewals,
deadlines and signals with it. A thread watches a heartbeat of the loop. It counts its own ticks: a process that was
stopped and goes on, or a machine that slept, is not taken for a blocked one. See docs/decisions/0045.

Code that keeps the interpreter to itself (a regular expression without end, an extension that waits) stops that thread
too. For it there is a second line: a child process into which the thread breathes (see `guardian`).
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import functools
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType

import structlog

from penstock.ledger.incarnation import Incarnation
from penstock.model import correlation
from penstock.model.clock import Clock
from penstock.worker import guardian
from penstock.worker.held import Held
from penstock.worker.holding import Holding

EXIT_CODE = 70
"""Of a process that its watchdog has ended."""
_SLOW_SECONDS = 1.0
_LONGEST_TICK = 0.5
_LEDGER_SECONDS = 5.0
_LOG_SECONDS = 1.0
_FRAMES = 40
_STANDARD_ERROR = 2
_TURN: CodeType = asyncio.Handle._run.__code__  # noqa: SLF001 - one callback of the loop, or one stretch of a task
log = structlog.get_logger()


class Watchdog:
    """Watches one event loop, from `start` to `stop`, both called on it.

    `lease_end` is the uptime at which the worker's lease ends, as far as the worker knows.
    """

    def __init__(self, clock: Clock, lease_ms: int, lease_end: Callable[[], float]) -> None:
        self._clock = clock
        self._lease_end = lease_end
        self._lease = lease_ms / 1000
        self._tick = min(_LONGEST_TICK, self._lease / 40)
        self._beats = 0
        self._next: asyncio.TimerHandle | None = None
        self._over = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0
        self._watched: tuple[Incarnation, Holding] | None = None
        self._breathing = threading.Lock()
        self._guardian: subprocess.Popen[bytes] | None = None
        #: The end is decided: the worker's units are given away, and nothing may leave any more.
        self.ending = False

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._guardian = self._guarded()
        self._beat()
        threading.Thread(target=self._watch, name="penstock-watchdog", daemon=True).start()

    def stop(self) -> None:
        self._over.set()
        if self._next is not None:
            self._next.cancel()
        with self._breathing:
            child, self._guardian = self._guardian, None
        if child is not None and child.stdin is not None:
            child.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(_LOG_SECONDS)

    def watch(self, incarnation: Incarnation, holding: Holding) -> None:
        """From now on this is what the worker holds."""
        self._watched = (incarnation, holding)

    def _beat(self) -> None:
        assert self._loop is not None  # noqa: S101 - it was started
        self._beats += 1
        self._next = self._loop.call_later(self._tick / 2, self._beat)

    def _guarded(self) -> subprocess.Popen[bytes] | None:
        """The child process, where it can tell a stopped process from a silent one."""
        if not Path("/proc/self/stat").exists():
            return None
        if not faulthandler.is_enabled():
            faulthandler.enable(_STANDARD_ERROR)  # writes the stacks on SIGABRT, without the interpreter
        seconds = self._lease * 1.1
        command = [sys.executable, "-I", "-S", guardian.__file__, str(os.getpid()), str(seconds)]
        # A session of its own: Ctrl-C is for the worker, which ends it.
        nowhere, pipe = subprocess.DEVNULL, subprocess.PIPE
        child = subprocess.Popen(command, stdin=pipe, stdout=nowhere, stderr=nowhere, start_new_session=True)  # noqa: S603
        assert child.stdin is not None  # noqa: S101 - asked for
        os.set_blocking(child.stdin.fileno(), False)
        return child

    def _breathe(self) -> None:
        with self._breathing:
            if self._guardian is not None and self._guardian.stdin is not None:
                # A guardian that is gone, or that somebody has stopped, is nobody's trouble here.
                with contextlib.suppress(OSError):
                    os.write(self._guardian.stdin.fileno(), b".")

    def _watch(self) -> None:
        """Count for how long one turn of the loop has gone on: alone, it is to blame; many that are slow are not."""
        beats, turn, seconds, told = self._beats, None, 0.0, 0
        last = self._clock.elapsed()
        while not self._over.wait(self._tick):
            self._breathe()
            now = self._clock.elapsed()
            # Between two ticks the process may have been stopped, which is nobody's fault and counts as little.
            passed, last = min(now - last, self._lease / 10), now
            before, turn = turn, self._turn()
            if beats != self._beats or turn is None or turn is not before:
                beats, seconds, told = self._beats, 0.0, 0
                continue
            seconds += passed
            if told < 1 and seconds >= min(_SLOW_SECONDS, self._lease / 4):
                told = 1
                self._aside(functools.partial(self._tell_slow, seconds), _LOG_SECONDS)
            if told < 2 and seconds >= self._lease / 2:  # noqa: PLR2004 - the second thing to tell
                told = 2
                self._aside(functools.partial(self._tell_blocked, seconds), _LOG_SECONDS)
            if self._is_time(seconds) and not self._debugged() and turn is self._turn():
                self._end(seconds)

    def _is_time(self, seconds: float) -> bool:
        """Whether the process is to end: late enough to be sure, and before others take over what it holds."""
        tenth = self._lease * 1000 / 10  # uptime is in milliseconds
        late = self._clock.uptime() >= self._lease_end() - tenth
        return seconds >= self._lease / 2 and (late or seconds >= self._lease * 0.9)

    def _end(self, seconds: float) -> None:
        """Give back what is held, the unit that blocked the loop as crashed; say so; end."""
        self.ending = True
        blocking, at = self._blocking(), self._where()
        reason = f"its step blocked the event loop for {seconds:.1f} s, at {at}"
        problems = ["the ledger did not answer in time"]
        self._aside(functools.partial(self._give_back, blocking, reason, problems), _LEDGER_SECONDS)
        self._aside(functools.partial(self._tell_end, seconds, _named(blocking), at, problems), _LOG_SECONDS)
        os._exit(EXIT_CODE)

    def _give_back(self, blocking: list[Held], reason: str, problems: list[str]) -> None:
        try:
            if self._watched is not None:
                incarnation, holding = self._watched
                together = len(blocking) > 1
                if blocking and not together:
                    incarnation.crash([blocking[0].unit], reason)
                incarnation.release([(h.unit, h.begun) for h in list(holding.held.values()) if h not in blocking])
                if together:
                    # One of the siblings did it, and nobody knows which: all are suspects of this death.
                    problems[:] = ["siblings that were stepped together, all of them suspects"]
                    return
                incarnation.retire()
            problems.clear()
        except Exception as error:  # noqa: BLE001 - the end comes all the same, and the lease frees what is left
            problems[:] = [repr(error)]

    def _tell_end(self, seconds: float, units: list[str], at: str, problems: list[str]) -> None:
        log.critical(
            "worker.ended",
            worker=self._who(),
            units=units,
            seconds=round(seconds, 1),
            at=at,
            held="kept until the lease is over: " + problems[0] if problems else "given back",
            next=f"the process ends with exit code {EXIT_CODE}; its supervisor starts another",
        )

    def _tell_slow(self, seconds: float) -> None:
        """Name a step that keeps all others waiting, while there is still hope that it ends."""
        blocking, frames = self._blocking(), self._frames()
        if not blocking:
            return
        codes = {getattr(held.flow.decide, "__code__", None) for held in blocking}
        if any(frame.f_code in codes for frame in frames):
            log.warning("decide.slow", units=_named(blocking), seconds=round(seconds, 1), at=self._where())
        else:
            log.warning("step.slow", units=_named(blocking), seconds=round(seconds, 1), at=self._where())

    def _tell_blocked(self, seconds: float) -> None:
        frames = list(reversed(self._frames()))[-_FRAMES:]
        stack = traceback.StackSummary.extract((frame, frame.f_lineno) for frame in frames)
        goes_on = (
            "nothing: a debugger is attached" if self._debugged() else "the process is ended before its lease is over"
        )
        log.warning(
            "worker.blocked",
            worker=self._who(),
            units=_named(self._blocking()),
            seconds=round(seconds, 1),
            at=self._where(),
            stack="".join(stack.format()).rstrip(),
            next=goes_on,
        )

    def _who(self) -> str | None:
        return None if self._watched is None else self._watched[0].identity.id

    def _frames(self) -> list[FrameType]:
        """What the loop's thread is doing, innermost first."""
        found, frame = [], sys._current_frames().get(self._loop_thread)  # noqa: SLF001 - documented for this
        while frame is not None:
            found.append(frame)
            frame = frame.f_back
        return found

    def _turn(self) -> object | None:
        """What tells this turn of the loop from every other; None while it waits for something to do."""
        return next((f for f in self._frames() if f.f_code is _TURN), None) or asyncio.current_task(self._loop)

    def _where(self) -> str:
        return next((f"{f.f_code.co_filename}:{f.f_lineno}" for f in self._frames()), "")

    def _debugged(self) -> bool:
        """Whether somebody looks at the loop's thread with Python's debugger, and takes as long as that takes."""
        return any(frame.f_globals.get("__name__") == "bdb" for frame in self._frames())

    def _blocking(self) -> list[Held]:
        """The unit whose step runs on the loop right now, with the siblings that are stepped together with it."""
        if self._watched is None:
            return []
        holding = self._watched[1].held
        task = asyncio.current_task(self._loop)
        if task is None or not any(held.task is task for held in list(holding.values())):
            # A task that the step has started, or a callback: its context is the step's.
            turn = next((f.f_locals.get("self") for f in self._frames() if f.f_code is _TURN), None)
            context = getattr(turn, "_context", None)
            step = None if context is None else context.get(correlation.STEP)
            first = None if step is None else holding.get((step[0], step[1].unit_id))
            task = None if first is None else first.task
        return [held for held in list(holding.values()) if task is not None and held.task is task]

    def _aside(self, work: Callable[[], None], seconds: float) -> None:
        """Do what may itself be held up, such as a write to a log that nobody reads, and wait so long for it."""
        thread = threading.Thread(target=work, name="penstock-watchdog-says", daemon=True)
        thread.start()
        until = self._clock.elapsed() + seconds
        while thread.is_alive() and self._clock.elapsed() < until:
            self._breathe()
            thread.join(self._tick)


def _named(blocking: list[Held]) -> list[str]:
    return [f"{held.flow.machine.name}:{held.unit.unit_id}" for held in blocking]
