"""`Recorder`: what the hooks of `torchkiln.core` tell, as events in the file of this process.

Events are those of Chrome's traces, which Perfetto draws: B and E for the beginning and end of a
stretch of work, i for what happened at one moment, C for numbers that change, M for names. The two
ends of a stretch are written when they happen, so a killed process shows what it was doing.
"""

from __future__ import annotations

import contextlib
import json
import math
import multiprocessing
import multiprocessing.util
import os
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from torchkiln.core import __version__, make_folders, warn_user
from torchkiln.profiling.system._event_file import EventFile
from torchkiln.profiling.system._session import Session

# Our own events among the names of Chrome's: the first of a file, and its last if all is well.
HEADER, END = "torchkiln_trace", "torchkiln_end"
FORMAT = 1
# What a stretch says that was still going on when recording ended.
CUT = "still running"
MEMORY_CHANNEL, MEMORY = "process", "memory (MB)"
# How often memory is read, and the main process' file is asked whether the recording is over.
_MEMORY_NS = 500_000_000
_LOOK_NS = 1_000_000_000
# After multiprocessing has ended and joined its children: their files are complete then.
_LAST = -100


@dataclass(slots=True, eq=False)
class _Thread:
    """What is going on in one thread.

    Args:
        tid: Its number in the system.
        last_ns: Time of its latest event.
        open: Stretches that have begun, outermost first.
    """

    tid: int
    last_ns: int = 0
    open: list[_Open] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Open:
    """A stretch that has begun."""

    thread: _Thread
    names: str


@final
class Recorder:
    """Writes what it hears to files of its own in every process that is forked from this one.

    Never raises once it is made: if nothing can be written, the main process warns once, and
    recording ends.

    Args:
        session: What is recorded, and where it goes.
        when_over: Called when it ends, to take it off the hooks.

    Raises:
        OSError: The file of the main process cannot be made.
    """

    def __init__(self, session: Session, when_over: Callable[[], None] | None = None) -> None:
        self.session = session
        self.when_over = when_over
        self._name: str | None = None
        self._names: dict[tuple[str, str], str] = {}
        self._start_in_this_process()
        if session.is_main:
            make_folders(session.directory)
            self._open_file()
        _recorders.add(self)

    def _start_in_this_process(self) -> None:
        # A signal handler, or a finalizer, may make a mark while one is being written.
        self._lock = threading.RLock()
        self._here = threading.local()
        self._busy: set[_Thread] = set()  # in which a stretch is going on
        self._file: EventFile | None = None
        self._pid = os.getpid()
        self._is_over = False
        self._next_memory_ns = self._next_look_ns = 0
        self._finalizer: Any = None

    def after_fork(self) -> None:
        """Be the recorder of a forked child, with a file of its own."""
        if self._file is not None:
            self._file.abandon()
        for thread in self._busy:
            thread.open.clear()  # they go on in the parent
        was_over = self._is_over
        self._start_in_this_process()
        self._is_over = was_over
        self._name = None

    # what the hooks call

    def begin(self, channel: str, label: str, time_ns: int) -> _Open | None:
        if not self._wants(channel):
            return None
        with self._lock:
            if not self._is_ready(time_ns):
                return None
            thread = self._this_thread()
            opened = _Open(thread, self._quoted(channel, label))
            if not self._write("B", opened.names, thread, time_ns):
                return None
            thread.open.append(opened)
            self._busy.add(thread)
            return opened

    def end(self, begun: _Open | None, time_ns: int) -> None:
        if begun is None:
            return
        with self._lock:
            still_open = begun.thread.open
            if begun not in still_open or not self._is_ready(time_ns):
                return
            # What began after it must end before it: viewers know stretches by their order.
            last = None
            while last is not begun:
                last = still_open.pop()
                self._write("E", last.names, last.thread, time_ns)
            if not still_open:
                self._busy.discard(begun.thread)

    def instant(self, channel: str, label: str, time_ns: int) -> None:
        if not self._wants(channel):
            return
        with self._lock:
            if self._is_ready(time_ns):
                names = self._quoted(channel, label)
                self._write("i", names, self._this_thread(), time_ns, ',"s":"t"')

    def counter(self, channel: str, name: str, value: float, time_ns: int) -> None:
        # There is no NaN in JSON, and no place for it on an axis.
        if not self._wants(channel) or not math.isfinite(value):
            return
        with self._lock:
            if self._is_ready(time_ns):
                self._write_counter(channel, name, value, time_ns)

    def name_process(self, name: str) -> None:
        with self._lock:
            self._name = name
            if self._file is not None and not self._is_over:
                self._put(self._metadata("process_name", name=name))

    def stop(self, time_ns: int | None = None) -> None:
        """End all that is going on, close the file, and listen no more."""
        with self._lock:
            if self._is_over:
                return
            now = time.perf_counter_ns() if time_ns is None else time_ns
            if self.session.end_ns is not None:
                now = min(now, self.session.end_ns)
            for thread in self._busy:
                while thread.open:
                    last = thread.open.pop()
                    self._write("E", last.names, thread, now, f',"args":{{"{CUT}":true}}')
            if self._file is not None and not self._is_over:
                self._put(self._metadata(END))
            self._leave(lambda file: file.close())

    # what they need

    def _wants(self, channel: str) -> bool:
        channels = self.session.channels
        return not self._is_over and (channels is None or channel in channels)

    def _is_ready(self, time_ns: int) -> bool:
        """Look whether the recording goes on, make the file if there is none, note the memory."""
        if self._is_over:
            return False
        session = self.session
        if session.end_ns is not None and time_ns >= session.end_ns:
            self.stop()
            return False
        if time_ns >= self._next_look_ns:
            self._next_look_ns = time_ns + _LOOK_NS
            if not session.is_main and session.is_over():
                self.stop()
                return False
        if self._file is None:
            try:
                self._open_file()
            except OSError as error:
                self._give_up(error)
                return False
        if time_ns >= self._next_memory_ns:
            self._next_memory_ns = time_ns + _MEMORY_NS
            if self._wants(MEMORY_CHANNEL) and (memory := _memory_mb()) is not None:
                self._write_counter(MEMORY_CHANNEL, MEMORY, memory, time_ns)
        return not self._is_over

    def _open_file(self) -> None:
        number = 1
        while self._file is None:
            try:
                self._file = EventFile(self.session.path_of(self._pid, number), self._header())
            except FileExistsError:  # a process of this run that ended had the same id
                number += 1
        name = self._name or self._default_name()
        order = 0 if self.session.is_main else 1
        self._put(self._metadata("process_name", name=name))
        self._put(self._metadata("process_sort_index", sort_index=order))
        self._finalizer = multiprocessing.util.Finalize(None, self.stop, exitpriority=_LAST)

    def _header(self) -> str:
        session = self.session
        return self._metadata(
            HEADER,
            format=FORMAT,
            torchkiln=__version__,
            run=session.run,
            main=session.is_main,
            rank=session.rank,
            channels=None if session.channels is None else sorted(session.channels),
            host=os.uname().nodename,
            wall_s=time.time(),
            clock_us=time.perf_counter_ns() / 1000,
        )

    def _default_name(self) -> str:
        rank = "" if self.session.rank is None else f" of rank {self.session.rank}"
        if self.session.is_main:
            return f"main{rank}"
        process = multiprocessing.current_process()
        is_started = multiprocessing.parent_process() is not None
        return f"{process.name if is_started else 'process'}{rank}"

    def _this_thread(self) -> _Thread:
        thread: _Thread | None = getattr(self._here, "thread", None)
        if thread is None:
            thread = self._here.thread = _Thread(threading.get_native_id())
            self._put(self._metadata("thread_name", name=_thread_name()))
        return thread

    def _quoted(self, channel: str, label: str) -> str:
        names = self._names.get((channel, label))
        if names is None:
            if len(self._names) >= 10_000:  # labels with numbers in them
                self._names.clear()
            names = f'"name":{json.dumps(str(label))},"cat":{json.dumps(str(channel))}'
            self._names[channel, label] = names
        return names

    def _write_counter(self, channel: str, name: str, value: float, time_ns: int) -> None:
        more = f',"args":{{{json.dumps(str(name))}:{float(value)!r}}}'
        self._write("C", self._quoted(channel, name), self._this_thread(), time_ns, more)

    def _write(self, kind: str, names: str, thread: _Thread, time_ns: int, more: str = "") -> bool:
        # A stretch that is ended from another thread may be told a little late.
        time_ns = thread.last_ns = max(time_ns, thread.last_ns)
        return self._put(
            f'{{"ph":"{kind}",{names},"ts":{time_ns // 1000}.{time_ns % 1000:03d},'
            f'"pid":{self._pid},"tid":{thread.tid}{more}}}'
        )

    def _metadata(self, what: str, **values: Any) -> str:
        event = {"ph": "M", "name": what, "pid": self._pid, "tid": threading.get_native_id()}
        return json.dumps({**event, "args": values})

    def _put(self, event: str) -> bool:
        if self._file is None or self._is_over:
            return False
        try:
            self._file.write(event)
        except OSError as error:
            self._give_up(error)
            return False
        return True

    def _give_up(self, error: OSError) -> None:
        self._leave(lambda file: file.abandon())
        # Processes that it started meet the same disk: one of them says so.
        if self.session.is_main:
            warn_user(
                f"the system profile in {self.session.directory} ends here, because nothing can be "
                f"written ({error.strerror or error}); the run goes on without it; free some "
                "space, or name another folder"
            )

    def _leave(self, close: Callable[[EventFile], None]) -> None:
        self._is_over = True
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # it lacks a bracket, which nobody misses
                close(file)
        if self._finalizer is not None:
            self._finalizer.cancel()
        if self.when_over is not None:
            self.when_over()


_recorders: weakref.WeakSet[Recorder] = weakref.WeakSet()


def _after_fork() -> None:
    for recorder in list(_recorders):
        recorder.after_fork()


os.register_at_fork(after_in_child=_after_fork)


def _thread_name() -> str:
    number = threading.get_ident()
    if number == threading.main_thread().ident:
        return "main thread"
    # Not `current_thread`: for a thread that Python did not start, that makes one up, which stays.
    names = (thread.name for thread in threading.enumerate() if thread.ident == number)
    return next(names, "foreign thread")


def _memory_mb() -> float | None:
    """Return the memory of this process, as far as Linux tells."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
