"""The public benchmarks by name."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from insclr.errors import UserError
from insclr.evaluation.classic import load_classic
from insclr.evaluation.gldv2 import load_gldv2
from insclr.evaluation.instre import load_instre
from insclr.evaluation.protocol import RetrievalProtocol
from insclr.evaluation.revisited import load_revisited

Loader = Callable[[Path, Path | None], RetrievalProtocol]

PROTOCOLS: dict[str, Loader] = {
    "roxford5k": partial(load_revisited, "roxford5k"),
    "rparis6k": partial(load_revisited, "rparis6k"),
    "oxford5k": partial(load_classic, "oxford5k"),
    "paris6k": partial(load_classic, "paris6k"),
    "instre": load_instre,
    "gldv2": load_gldv2,
}


def load_protocol(name: str, root: Path | str, ground_truth: Path | str | None = None) -> RetrievalProtocol:
    """The benchmark of this name with its images under `root`.

    The ground truth (a file; for the classic ones a folder) is looked for in `root` unless given.
    """
    if name not in PROTOCOLS:
        raise UserError(f'There is no protocol "{name}". Choose one of: {", ".join(PROTOCOLS)}.')
    if not Path(root).is_dir():
        raise UserError(f"{root} is no folder. Give the folder with the images of {name} as --root.")
    return PROTOCOLS[name](Path(root), Path(ground_truth) if ground_truth is not None else None)
