"""The command line: one function a command, which parses, calls and prints. Nothing heavy is imported here."""

import errno
import logging
import sys

import typer

from insclr.errors import UserError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Teach a network the particular things in your photos, without labels, and search them.",
)


def main() -> None:
    """Run a command; a user's mistake is one clear message and exit status 2, never a traceback."""
    from insclr.cli import evaluation, photos, search, training  # noqa: F401  (they register their commands)

    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    try:
        app()
    except UserError as error:
        print(f"insclr: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("insclr: stopped; what was written is whole.", file=sys.stderr)
        sys.exit(130)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        print(
            f"insclr: no space left on the disk ({error.filename or 'while writing'}). What was written is whole: "
            "free some space and start the same command again; a training goes on with --resume.",
            file=sys.stderr,
        )
        sys.exit(2)
