"""Push a model file and its card to a repository of the Hugging Face hub."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from insclr.errors import UserError
from insclr.model.stored import (
    FORMAT,
    MODEL_NAME,
    StoredModel,
    find_model_file,
    read_model_file,
    write_model_file,
)
from insclr.recipe import Recipe
from insclr.sharing.card import Result, model_card, origin_of, read_results, run_results, training_sentence
from insclr.sharing.hub import require_repository, upload

if TYPE_CHECKING:
    from insclr.engine.opened import OpenedModel
    from insclr.model.model_file import Model

_CARD_NAME = "README.md"  # where the hub looks for a card


@dataclass(frozen=True)
class Pushed:
    """What was uploaded, or would be: sizes in bytes by the names of the files, and the card as it stands there."""

    repo: str
    public: bool
    files: dict[str, int]
    card: str
    fingerprint: str
    url: str = ""  # of the commit; empty after a dry run

    def lines(self) -> list[str]:
        """For people."""
        done = "uploaded" if self.url else "would be uploaded"
        sizes = [f"{name:<18} {size / 1e6:8.2f} MB" for name, size in self.files.items()]
        ends = [f"commit {self.url}"] if self.url else []
        who = "public" if self.public else "private"
        return [f"{done} to {self.repo} ({who})", *sizes, f"model  {self.fingerprint}", *ends]


def push(
    model: "Model | OpenedModel | str | Path",
    repo: str,
    *,
    public: bool = False,
    results: Sequence[str | Path] = (),
    license: str = "",
    card: str | Path | None = None,
    dry_run: bool = False,
) -> Pushed:
    """Upload a model file and its card to the repository USER/NAME of the Hugging Face hub, private unless `public`.

    `results` are files of `insclr evaluate --json` for the card, `license` that of the model where it is not that of
    its backbone's weights, `card` a card of your own. `dry_run` shows what would be uploaded and connects to nothing.
    Folders in the recipe (of a weights file) are cut off; the model then has another fingerprint.

    >>> sorted(insclr.push("RUN", "me/things", dry_run=True).files)
    ['README.md', 'model.safetensors']
    """
    require_repository(repo)
    file = _model_file(model)
    measured = [result for one in results for result in read_results(Path(one))]
    own_card = _own_card(Path(card)) if card is not None else None
    with _shared_file(file) as (shared, stored):
        text = own_card or _card(repo, stored, file, measured, license)
        sizes = {MODEL_NAME: shared.stat().st_size, _CARD_NAME: len(text.encode())}
        pushed = Pushed(repo, public, sizes, text, stored.fingerprint)
        if dry_run:
            return pushed
        files: dict[str, Path | bytes] = {MODEL_NAME: shared, _CARD_NAME: text.encode()}
        url = upload(repo, files, public=public, message=f"Model {stored.fingerprint} of insclr")
    return replace(pushed, url=url)


def _model_file(model: "Model | OpenedModel | str | Path") -> Path:
    name = model if isinstance(model, str | Path) else model.source
    file = find_model_file(name) if str(name) else None
    if file is None:
        raise UserError(
            f"{name or 'This model'} is no model file: share a trained or whitened model, by its run folder or file."
        )
    return file


def _own_card(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"There is no card {file}: --dry-run prints one to begin with.") from None
    except UnicodeDecodeError:
        raise UserError(f"The card {file} is not UTF-8 text.") from None


@contextmanager
def _shared_file(file: Path) -> Iterator[tuple[Path, StoredModel]]:
    """The file to upload and what it holds: the user's own, or a copy without the folders in its recipe."""
    stored = read_model_file(file)
    if stored.format != FORMAT:
        raise UserError(
            f"{file} was written by an early version that kept half of the recipe: train it again."
        )
    bare = _without_folders(stored.recipe)
    if bare == stored.recipe:
        yield file, stored
        return
    with tempfile.TemporaryDirectory() as folder:
        shared = Path(folder, MODEL_NAME)
        yield shared, write_model_file(shared, stored.weights, bare, stored.notes)


def _without_folders(recipe: Recipe) -> Recipe:
    """The recipe with the bare name of a weights file: where it lay is nobody else's business."""
    name, at, weights = recipe.name.partition("@")  # pretrained:BACKBONE@WEIGHTS
    network = recipe.network.with_(weights=PurePath(recipe.network.weights).name)
    return recipe.with_(name=f"{name}{at}{PurePath(weights).name}", network=network)


def _card(repo: str, stored: StoredModel, file: Path, measured: list[Result], license: str) -> str:
    origin = origin_of(stored.recipe.network)
    data = training_sentence(stored)
    from insclr.run_folder import RunReader, kept_recipe

    if kept_recipe(file.parent) is not None and file.name == MODEL_NAME:
        run = RunReader(file.parent)
        data = training_sentence(stored, len(run.images()) or None, len(run.read_skipped()))
        measured = measured or run_results(run.read_measured(), run.metrics())
    return model_card(repo, stored, origin, data, measured, license)
