"""UserError: the exception for mistakes that the user can correct."""

import re
from importlib.util import find_spec

INSTALL_TORCH = "pip install 'insclr[train]'"
_OF_TRAINING = ("torch", "torchvision", "timm", "onnxscript")
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


def has_torch() -> bool:
    """Whether PyTorch is installed: searching and indexing do without."""
    return find_spec("torch") is not None


def require_torch(what: str) -> None:
    """Refuse what is done by PyTorch where it is not installed; `what` is a clause such as "training is done"."""
    if not has_torch():
        raise UserError(f"{what} with PyTorch, which is not installed: {INSTALL_TORCH}.")


def needs_torch(error: Exception) -> UserError | None:
    """What to tell a user where the error is that PyTorch, or what is installed with it, is missing."""
    if isinstance(error, ModuleNotFoundError) and error.name in _OF_TRAINING:
        return UserError(f"this is done with PyTorch, which is not installed: {INSTALL_TORCH}.")
    return None


class OtherShardsMissing(UserError):
    """One shard is done, but the result needs what others have still to do: no mistake, and no result either."""
