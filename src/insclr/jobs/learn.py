"""Learn from the feedback about a store's photos: a new model beside the old one, or in a folder of its own."""

import json
import os
import shutil
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from insclr.data.formats import on_disk
from insclr.data.images import ImageList
from insclr.describe.describer import Describer
from insclr.describe.pipeline import only_last_layer
from insclr.engine.choose import EngineOptions, require_engine
from insclr.engine.opened import OpenedModel, open_model
from insclr.errors import UserError, require_torch
from insclr.feedback.feedback import read_known
from insclr.files import is_there, whole_file
from insclr.retrieval.index import IndexReport, index_images
from insclr.retrieval.local_store import learn_from_answers, local_choice_of
from insclr.retrieval.score_after_learning import draw_decided_pairs, keep_share_of_sure
from insclr.store import Store, open_store
from insclr.store.store_models import MODELS, StoreModels, model_folder, read_models, write_models

_FEATURES = "features"  # a note of the store
_LEARNING = "learning.json"  # beside the run of a model that is not finished: what it is made of


@dataclass(frozen=True)
class Learned:
    """The run, the store of its model, and the report of indexing."""

    run: Path
    store: Path
    report: IndexReport


def learn(
    store: str | Path,
    out: str | Path | None = None,
    recipe: str = "fast",
    changes: tuple[str, ...] = (),
    device: str = "auto",
    engine: str = "auto",
) -> Learned:
    """Train on the photos of a store with its answers, and search them with the new model from then on.

    The old model stays in the store: `insclr.models` goes back to it. With `out` the new model and a new store, with
    a copy of all names and answers, are made there instead. Features stay in the store's cache, so that the next
    time takes seconds. `engine` describes the photos on a CPU; torch trains. A call that was killed continues when
    it is repeated, with the answers that it began with.

    >>> learned = insclr.learn("STORE", "LEARNED")
    >>> learned.store
    PosixPath('LEARNED/store')
    """
    require_torch("learning is done")  # before anything is made
    require_engine(engine, device)
    uri = str(store)
    kept = uri if "://" in uri else os.path.abspath(uri)  # noqa: PTH100 (the run may be resumed from elsewhere)
    with closing(open_store(uri)) as opened:
        images, cache = _images(opened), _features(opened)
        if out is None:
            target = folder = _begin_model(opened, [recipe, *changes])
        else:
            folder = Path(out)
            target = folder / "store"
            _require_free(folder, kept)
    from insclr.jobs.train import train  # `models` needs no torch
    from insclr.run_folder import kept_answers

    train(
        images,
        folder / "run",
        recipe,
        changes=changes,
        resume=kept_answers(folder / "run") is not None,
        cache=cache,
        answers=kept,
        device=device,
        engine=engine,
    )
    model = open_model(folder / "run", EngineOptions(engine, device))
    report = index_learned(uri, model, folder, target)
    if out is not None:
        return Learned(folder / "run", target, report)
    models(uri, int(folder.name))
    return Learned(folder / "run", Path(uri), report)


def models(store: str | Path, use: int = 0) -> StoreModels:
    """The models of a store: the numbers of the `current` one and of the one `before`; `use` makes one the current.

    Names and answers stay as they are.

    >>> insclr.models("STORE").current
    1
    """
    with closing(open_store(store)) as opened:
        home = opened.folder
    if home is None:
        raise UserError(f"{store} is on a server and has one model: give `insclr learn` a folder with --out.")
    found = read_models(home)
    if use in (0, found.current):
        return found
    if use != 1 and not _is_complete(model_folder(home, use)):
        raise UserError(f"{store} has no model {use}: `insclr models {store}` lists them.")
    found = found.use(use)
    write_models(home, found)
    for folder in (home / MODELS).iterdir():  # those that are neither in use nor gone back to
        number = int(folder.name) if folder.name.isdecimal() else found.last + 1
        if number <= found.last and number not in (found.current, found.before):
            shutil.rmtree(folder, ignore_errors=True)
    return found


def _begin_model(store: Store, recipe: list[str]) -> Path:
    """The folder for the next model; one that a killed call left is used again if it learned the same."""
    number = models(store.uri).last + 1
    folder = model_folder(store.folder or Path(), number)
    journal = store.journal()
    made_of = json.dumps([recipe, journal[-1].id if journal else "", len(journal)])
    note = folder / _LEARNING
    if not note.exists() or note.read_text(encoding="utf-8") != made_of:
        shutil.rmtree(folder, ignore_errors=True)  # never in use: it has no number yet
        with whole_file(note) as scratch:
            scratch.write_text(made_of, encoding="utf-8")
    return folder


def index_learned(uri: str, model: OpenedModel, out: Path, target: Path) -> IndexReport:
    """Index the photos of a store with another model into `target`, and copy its feedback.

    Size, regions and local features are as in the store.
    """
    with closing(open_store(uri)) as old:
        cache = _features(old)
        # Where only the last layer learned, the next model will need no photo again.
        features = cache if only_last_layer(model.recipe) else None
        describer = Describer(str(out / "run"), model, size=old.info.size, features=features)
        while True:
            version = old.version()
            report = index_images(
                describer,
                _images(old),
                target,
                regions=old.has_regions(),
                local=local_choice_of(old),
            )
            if old.version() == version:  # else photos came or went meanwhile
                break
        with closing(open_store(target)) as new:
            new.append(old.journal())
            known = read_known(old)
            keep_share_of_sure(old, new, known)
            if decided := draw_decided_pairs(old, known):
                learn_from_answers(new, decided, old)
            new.set_note(_FEATURES, str(cache))  # last: with it the store is complete
    return report


def _require_free(out: Path, uri: str) -> None:
    """Refuse a folder unless it is empty or a killed call for the same store left it."""
    if not out.exists() or not any(out.iterdir()):
        return
    from insclr.run_folder import kept_answers

    answers = kept_answers(out / "run")
    known = {"run"} if answers is None else {"run", "store"}
    foreign = [one.name for one in out.iterdir() if one.name not in known]
    if foreign or answers not in (None, uri) or _is_complete(out / "store"):
        raise UserError(f"{out} is not empty: choose another folder for what is learned.")


def _is_complete(folder: Path) -> bool:
    """Whether a learned store has its last note."""
    if not folder.exists():
        return False
    try:
        with closing(open_store(folder)) as store:
            return store.note(_FEATURES) is not None
    except UserError:
        return False  # killed before it was a store


def _features(store: Store) -> Path:
    """Where the features of its photos are kept: a learned store shares those of the store it came from."""
    kept = store.note(_FEATURES)
    return Path(kept if kept and Path(kept).exists() else os.path.abspath(store.cache / "features"))  # noqa: PTH100


def _images(store: Store) -> ImageList:
    """The photos of a store that are still there, in the order of their ids, with their columns.

    A new store of them then gives its rows the same ids, unless photos have gone.
    """
    rows = [row.image for row in sorted(store.rows_by_path().values(), key=lambda row: row.id)]
    rows = [image for image in rows if is_there(on_disk(store.info.root / image.path))]
    names = store.columns()
    columns = {name: tuple(image.columns.get(name, "") for image in rows) for name in names}
    return ImageList(store.info.root, tuple(image.path for image in rows), columns)
