"""The progress of long jobs: bars on a terminal, elsewhere a line every ten seconds, in text or JSON."""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from typing import Any

EVERY = 10.0  # seconds between two lines where there is no terminal
as_json = False  # set by `insclr --log json`


def json_line(level: str, message: str, **fields: object) -> str:
    """A message as a JSON object in one line."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return json.dumps({"time": now, "level": level, "message": message, **fields})


class Bar:
    """One stage under way; `total` None where the amount of work is unknown."""

    def __init__(self, title: str, total: int | None, done: int) -> None:
        self.title = title
        self.total = total
        self.done = self._first = done
        self.began = time.monotonic()
        self.shown = ""
        self.display: Any = None  # rich's number of it, on a terminal

    def advance(self, steps: int = 1, **shown: object) -> None:
        """Move on by `steps`; `shown` are name=value pairs displayed beside the bar."""
        self.done += steps
        if shown:
            self.shown = "  ".join(f"{name} {value}" for name, value in shown.items())
        _now.refresh(self)

    def expect(self, total: int) -> None:
        """Change the number of steps to do."""
        self.total = total
        _now.refresh(self)

    def seconds_left(self) -> float | None:
        """By the pace so far; None where that or the amount of work is unknown."""
        passed, steps = time.monotonic() - self.began, self.done - self._first
        if self.total is None or steps <= 0:
            return None
        return passed / steps * max(0, self.total - self.done)

    def status(self) -> str:
        """How far it is, and the time left or taken."""
        if self.total is None:
            return f"{in_words(time.monotonic() - self.began)} so far"
        left = self.seconds_left()
        return f"{self.done} of {self.total}" + ("" if left is None else f", {in_words(left)} left")


class _Display:
    """The stages under way, the innermost last, and how they are shown."""

    def __init__(self) -> None:
        self._tasks: list[Bar] = []
        self._rich: Any = None
        self._ended: threading.Event | None = None
        self.after: Callable[[], float | None] | None = None  # seconds of the stages that follow

    def begin(self, task: Bar) -> None:
        self._tasks.append(task)
        if self._rich is not None or (sys.stderr.isatty() and not as_json):  # rich replaces stderr by its own
            if self._rich is None:
                self._rich = _rich_progress()
                self._rich.start()
            task.display = self._rich.add_task(task.title, total=task.total, completed=task.done, of=task)
        elif self._ended is None:
            self._ended = threading.Event()
            threading.Thread(target=self._print_lines, args=(self._ended,), daemon=True).start()

    def end(self, task: Bar) -> None:
        self._tasks.remove(task)
        if self._rich is not None:
            if self._tasks or task.total is None:
                self._rich.remove_task(task.display)
            if not self._tasks:
                self._rich.stop()
                self._rich = None
        if not self._tasks and self._ended is not None:
            self._ended.set()
            self._ended = None

    def refresh(self, task: Bar) -> None:
        if self._rich is not None:
            self._rich.update(task.display, completed=task.done, total=task.total)

    def overall(self) -> str:
        """The time left of the whole job in words, where it is known."""
        left = self.seconds_left() if self.after is not None else None
        return "" if left is None else f"about {in_words(left)} in all"

    def seconds_left(self) -> float | None:
        """The time left of the stage at hand and of those that follow it; None where a part of that is unknown."""
        tasks = tuple(self._tasks)
        if self.after is None:  # a bar inside of a stage without a count is only a part of it
            return tasks[0].seconds_left() if tasks else None
        known = [left for task in tasks if (left := task.seconds_left()) is not None]
        later = self.after()
        return known[0] + later if known and later is not None else None

    def _print_lines(self, ended: threading.Event) -> None:
        while not ended.wait(EVERY):
            tasks = list(self._tasks)
            if not tasks:
                continue
            stages = [f"{task.title}: {task.status()}" for task in tasks]
            line = " · ".join(filter(None, [*stages, self.overall()]))
            if as_json:
                steps = [{"stage": one.title, "done": one.done, "total": one.total} for one in tasks]
                left = self.seconds_left()
                line = json_line("progress", line, stages=steps, left=left and round(left, 1))
            print(line, file=sys.stderr)


_now = _Display()


@contextmanager
def progress_bar(title: str, total: int | None, done: int = 0) -> Iterator[Bar]:
    """A bar of `total` steps with the time left; of several ranks only the first shows one."""
    bar = Bar(title, total, done)
    if not _is_first_rank():
        yield bar
        return
    _now.begin(bar)
    try:
        yield bar
    finally:
        _now.end(bar)


def working(title: str) -> AbstractContextManager[Bar]:
    """A stage with an unknown amount of work: the time it has taken is shown."""
    return progress_bar(title, None)


@contextmanager
def followed_by(seconds: Callable[[], float | None]) -> Iterator[None]:
    """Bars in this block show the time left in all: their own, and the `seconds` of the stages after them."""
    _now.after = seconds
    try:
        yield
    finally:
        _now.after = None


def say(text: str) -> None:
    """Print a message to the user; of several ranks only the first does."""
    if _is_first_rank():
        print(json_line("info", text) if as_json else text, file=sys.stderr)


def in_words(seconds: float) -> str:
    """A duration in words: 40 s, 3 min, 2 h 10 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def _is_first_rank() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _rich_progress() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn
    from rich.text import Text

    class _Status(ProgressColumn):
        """One text, so that a narrow terminal cuts its end and not the count."""

        def render(self, task: Any) -> Text:
            of: Bar = task.fields["of"]
            overall = _now.overall() if of.total is not None else ""
            return Text("  ".join(filter(None, [of.status(), overall, of.shown])), no_wrap=True)

    return Progress(TextColumn("{task.description}"), BarColumn(10), _Status(), console=Console(stderr=True))
