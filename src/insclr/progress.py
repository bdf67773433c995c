"""One progress bar for every long job: shown on a terminal, silent everywhere else."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Bar(Protocol):
    """What a job tells its progress bar."""

    def advance(self, steps: int = 1, **shown: object) -> None:
        """Move on by `steps`; `shown` are name=value pairs displayed beside the bar."""


class _SilentBar:
    def advance(self, steps: int = 1, **shown: object) -> None:
        pass


@contextmanager
def progress_bar(title: str, total: int, done: int = 0) -> Iterator[Bar]:
    """A bar of `total` steps with rate and time left; does nothing when stderr is not a terminal."""
    if not sys.stderr.isatty():
        yield _SilentBar()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[shown]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=False) as progress:
        task = progress.add_task(title, total=total, completed=done, shown="")

        class _RichBar:
            def advance(self, steps: int = 1, **shown: object) -> None:
                text = "  ".join(f"{name} {value}" for name, value in shown.items())
                progress.advance(task, steps)
                if shown:
                    progress.update(task, shown=text)

        yield _RichBar()
