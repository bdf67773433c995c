"""The names of the re-rankers, apart from what they compute with: a wrong one is told at once."""

from insclr.errors import UserError

RERANKER_NAMES = ("alphaqe", "diffusion", "kreciprocal")
VERIFIER_NAMES = ("geometric", "dsm")  # they compare images rather than descriptors


def require_reranker(name: str) -> str:
    """The name of a re-ranker of descriptors without case, spaces and dashes; UserError where there is none."""
    plain = _plain(name)
    if plain not in RERANKER_NAMES:
        raise UserError(f'There is no re-ranker "{name}". Choose one of: {", ".join(RERANKER_NAMES)}.')
    return plain


def require_known(name: str) -> None:
    """UserError where there is neither a re-ranker nor a verifier of this name; empty is none of them."""
    known = (*RERANKER_NAMES, *VERIFIER_NAMES)
    if name and _plain(name) not in known:
        raise UserError(f'There is no re-ranker "{name}". Choose one of: {", ".join(known)}.')


def verifier_name(name: str) -> str:
    """The name of a verifier without case, spaces and dashes; empty when it is none."""
    plain = _plain(name)
    return plain if plain in VERIFIER_NAMES else ""


def _plain(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter.isalnum())
