"""UserError: the exception for mistakes that the user can correct."""

import re

WHERE_IT_RUNS = "insclr runs on Linux and macOS; on Windows, run it in WSL."


in_shell = False  # set by the command line
_FLAG = re.compile(r"`[^`]*`|(?<![\w-])--([a-z][a-z-]*)( (?=[A-Z0-9]))?")


class UserError(Exception):
    """A mistake that the user can correct: the message names what is wrong, where, and what to do.

    The command line prints it without a traceback and exits with status 2. In Python the flags in it are keywords.
    """

    def __str__(self) -> str:
        return super().__str__() if in_shell else _FLAG.sub(_keyword, super().__str__())


def _keyword(flag: re.Match[str]) -> str:
    name, value = flag.groups()
    return f"{name.replace('-', '_')}{'=' if value else ''}" if name else flag[0]


class OtherShardsMissing(UserError):
    """One shard is done, but the result needs what others have still to do: no mistake, and no result either."""
