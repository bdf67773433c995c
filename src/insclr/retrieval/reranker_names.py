"""The names of the re-rankers, apart from what they compute with: a wrong one is told at once."""

from insclr.errors import UserError

RERANKER_NAMES = ("aqe", "alphaqe", "dba", "diffusion", "egt", "kreciprocal")


def require_reranker(name: str) -> str:
    """A re-ranker's name without case, spaces and dashes; UserError where there is none, empty for none."""
    plain = "".join(letter for letter in name.casefold() if letter.isalnum())
    if name and plain not in RERANKER_NAMES:
        raise UserError(f'There is no re-ranker "{name}". Choose one of: {", ".join(RERANKER_NAMES)}.')
    return plain
