"""The limits of a check, and the line that loops: CPU time, so that a busy machine fails nobody, and memory."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType

SECONDS = 10.0
MEMORY = (
    1_000_000_000  # bytes that a check may add: a loop that fills a list would stop the machine before its time is up
)
CALIBRATION_S = 0.02  # what the loop of `_slowness` took where the limit was chosen


ENDLESS, GROWS = "it does not come to an end", "it takes more and more memory"


class TooLong(BaseException):
    """Raised inside the check. Not an Exception, for `except Exception` in a loop must not swallow it."""


class TimeLimit:
    """`with TimeLimit(...)`: after `seconds` of the process's CPU time, TooLong is raised in this thread.

    So it is when the process grows by more than MEMORY (not on Windows, which has no `resource`). why: which it was.
    `where(frame)` turns the running frame into what `line` says of it. `stuck(why, line)` may end the process: it is
    called when the memory is used up, or when the code goes on all the same, because it catches everything.

    A thread watches, not a signal: that works on every system. (Where there are no threads, as in a browser, there is
    no limit.) A slower machine gets more: the watcher times a loop of its own before it ends a check.
    """

    def __init__(
        self, seconds: float, where: Callable[[FrameType | None], str], stuck: Callable[[str, str], None] | None = None
    ) -> None:
        self.seconds, self.where, self.stuck = seconds, where, stuck
        self.line = self.why = ""
        self._thread_id = threading.get_ident()
        self._lock = threading.Lock()
        self._over = threading.Event()

    def __enter__(self) -> TimeLimit:
        watcher = threading.Thread(target=self._watch, args=(time.process_time(), _peak()), daemon=True)
        with contextlib.suppress(RuntimeError):  # there are no threads here
            watcher.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            self._stop()
        except TooLong:  # it was on its way, and has come just now
            self._stop()
            raise

    def _stop(self) -> None:
        with self._lock:
            self._over.set()
            _raise_in(self._thread_id, None)  # takes back what was not delivered yet

    def _watch(self, start: float, peak: int) -> None:
        seconds, warnings = self.seconds, 0
        while not self._over.wait(min(0.1, self.seconds / 10)):
            grown = _peak() - peak > MEMORY
            if time.process_time() - start < seconds and (warnings or not grown):
                continue
            if not warnings and not grown:
                seconds = self.seconds * _slowness()
                if time.process_time() - start < seconds:
                    continue
            self.why = self.why or (GROWS if grown else ENDLESS)
            self.line = self.line or self.where(sys._current_frames().get(self._thread_id))
            with self._lock:
                if self._over.is_set():
                    return
                if self.stuck and (warnings == 3 or grown):
                    self.stuck(self.why, self.line)
                _raise_in(self._thread_id, TooLong)
            warnings += 1
            seconds = time.process_time() - start + 1.0


def _raise_in(thread_id: int, error: type[BaseException] | None) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), error and ctypes.py_object(error))


def _peak() -> int:
    """The most memory that the process has had so far, in bytes."""
    try:
        import resource
    except ImportError:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _slowness() -> float:
    """How much slower this machine is than the one where the limit was chosen; at least 1."""
    start = time.thread_time()  # of this thread alone: the learner's loop is still running beside it
    for _ in range(1_000_000):
        pass
    return max(1.0, (time.thread_time() - start) / CALIBRATION_S)
