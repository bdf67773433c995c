"""UserError: the exception for mistakes that the user can correct."""

WHERE_IT_RUNS = "insclr runs on Linux and macOS; on Windows, run it in WSL."


class UserError(Exception):
    """A mistake that the user can correct: the message names what is wrong, where, and what to do.

    The command line prints it without a traceback and exits with status 2.
    """


class OtherShardsMissing(UserError):
    """One shard is done, but the result needs what others have still to do: no mistake, and no result either."""
