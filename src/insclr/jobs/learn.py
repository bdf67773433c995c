"""Learn from the feedback about a store's photos: a new model, and a new store of its descriptors."""

import os
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from insclr.data.formats import on_disk
from insclr.data.images import ImageList
from insclr.describe.describer import ModelDescriber
from insclr.describe.pipeline import only_last_layer
from insclr.engine.choose import EngineOptions, require_engine
from insclr.engine.opened import OpenedModel, open_model
from insclr.errors import UserError
from insclr.files import is_there
from insclr.jobs.train import train
from insclr.retrieval.index import IndexReport, index_images
from insclr.retrieval.local_features import LocalFeatureDatabase
from insclr.run_folder import kept_answers
from insclr.store import Store, open_store

_FEATURES = "features"  # a note of the store


@dataclass(frozen=True)
class Learned:
    """The run, the store of its model, and the report of indexing."""

    run: Path
    store: Path
    report: IndexReport


def learn(
    store: str | Path,
    out: str | Path,
    recipe: str = "fast",
    changes: tuple[str, ...] = (),
    device: str = "auto",
    engine: str = "auto",
) -> Learned:
    """Train on the photos of a store with its answers, and index them with the new model below `out`.

    Names and answers are copied along. Features stay in the store's cache, so that the next time takes seconds.
    `engine` describes the photos on a CPU; torch trains. A call that was killed continues when it is repeated, with
    the answers that it began with.

    >>> learned = insclr.learn("STORE", "LEARNED")
    >>> learned.store
    PosixPath('LEARNED/store')
    """
    require_engine(engine, device)  # before anything is made
    uri, out = str(store), Path(out)
    with closing(open_store(uri)) as opened:
        images, cache = _images(opened), _features(opened)
    kept = uri if "://" in uri else os.path.abspath(uri)  # noqa: PTH100 (the run may be resumed from elsewhere)
    _require_free(out, kept)
    train(
        images,
        out / "run",
        recipe,
        changes=changes,
        resume=kept_answers(out / "run") is not None,
        cache=cache,
        answers=kept,
        device=device,
        engine=engine,
    )
    report = index_learned(uri, open_model(out / "run", EngineOptions(engine, device)), out)
    return Learned(out / "run", out / "store", report)


def index_learned(uri: str, model: OpenedModel, out: Path) -> IndexReport:
    """Index the photos of a store with another model, and copy its feedback.

    Size, regions and local features are as in the store.
    """
    with closing(open_store(uri)) as old:
        cache = _features(old)
        # Where only the last layer learned, the next model will need no photo again.
        features = cache if only_last_layer(model.recipe) else None
        describer = ModelDescriber(str(out / "run"), model, size=old.info.size, features=features)
        report = index_images(
            describer,
            _images(old),
            out / "store",
            regions=old.has_regions(),
            local=_has_local_features(old),
        )
        with closing(open_store(out / "store")) as new:
            new.append(old.journal())
            new.set_note(_FEATURES, str(cache))  # last: with it the store is complete
    return report


def _require_free(out: Path, uri: str) -> None:
    """Refuse a folder unless it is empty or a killed call for the same store left it."""
    if not out.exists() or not any(out.iterdir()):
        return
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
    return Path(store.note(_FEATURES) or os.path.abspath(store.cache / "features"))  # noqa: PTH100


def _has_local_features(store: Store) -> bool:
    with closing(LocalFeatureDatabase(store.parts)) as kept:
        return bool(kept.hashes())


def _images(store: Store) -> ImageList:
    """The photos of a store that are still there, in the order of their ids, with their columns.

    A new store of them then gives its rows the same ids, unless photos have gone.
    """
    rows = [row.image for row in sorted(store.rows_by_path().values(), key=lambda row: row.id)]
    rows = [image for image in rows if is_there(on_disk(store.info.root / image.path))]
    names = store.columns()
    columns = {name: tuple(image.columns.get(name, "") for image in rows) for name in names}
    return ImageList(store.info.root, tuple(image.path for image in rows), columns)
