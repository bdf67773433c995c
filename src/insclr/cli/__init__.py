"""The command line: one function for each command, which parses, calls and prints. Imports nothing heavy."""

import atexit
import errno
import gc
import logging
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from insclr import errors, progress
from insclr.errors import WHERE_IT_RUNS, UserError
from insclr.files import system_error

COMMAND_ORDER = (
    *("demo", "check", "recipes", "train", "index", "watch", "search", "serve", "names", "answers", "learn"),
    *("models", "mcp", "duplicates", "bursts", "cluster", "calibrate", "evaluate", "compare", "report"),
    *("backbones", "whiten", "embed", "export", "push", "pull", "demo-data", "list", "paper"),
)


class _FullSummaries(TyperGroup):
    """Lists the commands with the whole first paragraph of their help; typer would cut it to one line."""

    def list_commands(self, ctx: Any) -> list[str]:
        """In the order of work."""
        names = super().list_commands(ctx)
        return sorted(
            names, key=lambda name: COMMAND_ORDER.index(name) if name in COMMAND_ORDER else len(COMMAND_ORDER)
        )

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        shown = [(name, command) for name, command in commands if command is not None and not command.hidden]
        with formatter.section("Commands"):
            formatter.write_dl([(name, _summary(command.help)) for name, command in shown])


def _summary(text: str | None) -> str:
    return " ".join((text or "").split("\n\n")[0].split())


app = typer.Typer(
    cls=_FullSummaries,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_REFUSED = (errno.EROFS, errno.EACCES, errno.EPERM)
_OTHER_DISK = (
    *(errno.EIO, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP),
    *(errno.ENAMETOOLONG, errno.EINVAL, errno.ESTALE),
)
_SYSTEM = (errno.EIO, errno.EMFILE, errno.ENFILE, errno.EINTR)  # with or without the name of a file
_CONTINUE = "Files written so far are intact. Run the same command to continue."
_NO_MEMORY = (
    "there is not enough memory. Close other programs, or lift the limit (4 GB are enough for `ulimit -v`). "
    + _CONTINUE
)
_MEMORY_ERROR = re.compile(
    "failed to map segment|[Cc]annot allocate memory|can't start new thread|bad_alloc|not enough memory"
    "|Unable to allocate|can't allocate|[Oo]ut of memory"
)
_LEAST_MEMORY = 400_000_000  # bytes of address space; with less, libraries crash while they are loaded
LAST_SECONDS = 9  # after which a signal ends even a process that hangs
_describe_kept: Callable[[], str] = str  # what to print when stopped; a command sets it


class _Stopped(BaseException):
    """Ctrl-C or SIGTERM. Not a KeyboardInterrupt, which typer would swallow without a word."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class _OneLine(logging.Formatter):
    """Messages without line ends and terminal codes: names of files in them come from others."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        from insclr.data.table import one_line

        return one_line(super().formatMessage(record))


class _JsonLine(logging.Formatter):
    """A JSON object for each message."""

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if record.exc_info:
            message += "\n" + self.formatException(record.exc_info)
        return progress.json_line(record.levelname.lower(), message, logger=record.name)


def _show_version(wanted: bool) -> None:
    if wanted:
        from insclr import __version__

        typer.echo(f"insclr {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[  # noqa: ARG001
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print debug messages to stderr.")] = False,
    log: Annotated[
        Literal["text", "json"],
        typer.Option(help="text, or json: messages and progress as JSON lines on stderr."),
    ] = "text",
) -> None:
    """Train a network on the particular things in your photos, without labels, and search them."""
    if verbose:
        for name in ("insclr", "insclr.engine"):
            logging.getLogger(name).setLevel(logging.DEBUG)
    if log == "json":
        progress.as_json = True
        for handler in logging.getLogger().handlers:
            handler.setFormatter(_JsonLine())


def tell_when_stopped(describe_kept: Callable[[], str]) -> None:
    """Set the sentence printed after Ctrl-C or SIGTERM: what the command keeps, and how to continue."""
    global _describe_kept
    _describe_kept = describe_kept


def main() -> None:
    """Run a command; a user's mistake is one clear message and exit status 2, never a traceback."""
    # Before pydantic searches every installed package for plugins.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # numpy's threads spin for 2^28 ticks, a tenth of a second of every other core, when they start and after each
    # product. 2^20 ticks are enough to stay awake from one product to the next.
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "20")
    # Else Python collects garbage among all objects once more at its end.
    atexit.register(gc.freeze)
    from insclr.cli import evaluation, indexing, name_commands, sharing, stores, training  # noqa: F401  (they register their commands)

    for stream in ("stdout", "stderr"):
        if getattr(sys, stream) is None:  # closed by the caller, as by 2>&-
            setattr(sys, stream, Path(os.devnull).open("w"))  # noqa: SIM115  (as long as the program runs)
    shown = logging.StreamHandler()
    shown.setFormatter(_OneLine("%(levelname)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[shown])
    logging.getLogger("insclr.engine").setLevel(logging.INFO)  # one line names the engine
    warnings.filterwarnings(
        "ignore", module="PIL"
    )  # of damaged and of large files, which are named with the reason
    threading.excepthook = _report_thread
    tell_when_stopped(lambda: _CONTINUE)
    progress.as_json = False
    errors.in_shell = True
    try:
        if not hasattr(os, "fork"):
            raise UserError(WHERE_IT_RUNS)
        _require_memory()
        with _raise_on_signals():
            require_text(sys.argv)
            app()
    except UserError as error:
        _end(str(error), 2)
    except _Stopped as stopped:
        _end(f"stopped. {_describe_kept()}", 128 + stopped.number)
    except Exception as error:
        sentence = _NO_MEMORY if _lacks_memory(error) else None
        if no_torch := errors.needs_torch(error):
            sentence = str(no_torch)
        if sentence is None and (of_system := system_error(error)) is not None:
            sentence = _disk_sentence(of_system)
        if sentence is None:
            raise
        _end(sentence, 2, at_once=sentence == _NO_MEMORY)


def _report_thread(failed: threading.ExceptHookArgs) -> None:
    """A library's thread that cannot write (TensorBoard's) is one line."""
    if isinstance(failed.exc_value, OSError):
        logging.getLogger(__name__).warning("%s", failed.exc_value)
    else:
        threading.__excepthook__(failed)


def _require_memory() -> None:
    import resource  # not on Windows

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY and limit < _LEAST_MEMORY:
        raise MemoryError


def require_text(arguments: list[str]) -> None:
    """Refuse names whose bytes are no UTF-8: neither a store nor a table nor a page could hold them."""
    from insclr.data.formats import is_text

    for argument in arguments:
        if not is_text(argument):
            raise UserError(f"{argument}: this name is not UTF-8 text. Rename the file or folder.")


def _lacks_memory(error: BaseException | None) -> bool:
    """Whether an error, or what led to it, is one of the many forms of too little memory."""
    seen: list[BaseException] = []
    while error is not None and all(error is not one for one in seen):  # two errors may name each other
        if isinstance(error, MemoryError) or _MEMORY_ERROR.search(str(error)):
            return True
        seen.append(error)
        error = error.__cause__ or error.__context__
    return False


def _disk_sentence(error: OSError) -> str | None:
    """The message for an error of the user's disk; None for other errors."""
    where = str(error.filename or "while writing")
    if error.errno in _FULL:
        return f"no space left on the disk ({where}). Free some space. {_CONTINUE}"
    if error.errno in _REFUSED:
        return f"{where}: {error.strerror}. Choose a place that you may read and write."
    if error.errno in _OTHER_DISK and error.filename:
        return f"{where}: {error.strerror}."
    if error.errno in _SYSTEM:
        return f"{where}: {error.strerror}. {_CONTINUE}"
    return None


def _end(message: str, status: int, *, at_once: bool = False) -> None:
    """Print the message and end; `at_once` without unloading libraries, which may crash where memory is short."""
    from insclr.data.table import one_line

    message = "\n".join(map(one_line, message.split("\n")))
    line = progress.json_line("error", message) if progress.as_json else f"insclr: {message}"
    print(line, file=sys.stderr)
    if at_once:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def _stop(number: int, _: object) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(LAST_SECONDS)
    raise _Stopped(number)


@contextmanager
def _raise_on_signals() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end this process by an exception."""
    before = {number: signal.signal(number, _stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ignore_signals() -> None:
    """Forked workers are ended by their parent, in order and without a traceback.

    A terminal sends Ctrl-C to them too, a service manager SIGTERM.
    """
    if signal.getsignal(signal.SIGTERM) is _stop:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


if hasattr(os, "register_at_fork"):  # else `main` refuses to run
    os.register_at_fork(after_in_child=_ignore_signals)
