"""A whole run: images and a recipe in, a run folder with a trained model out."""

from contextlib import nullcontext
from pathlib import Path

from insclr.data.feedback_groups import FeedbackGroups
from insclr.data.images import ImageList
from insclr.engine.choose import require_engine
from insclr.errors import UserError
from insclr.methods import create_method
from insclr.model.device import pick_device
from insclr.model.model_file import MODEL_NAME, Model, load_model
from insclr.ranks import joined
from insclr.recipe import Recipe
from insclr.run_folder import RunFolder
from insclr.training.fit import fit_to_collection
from insclr.training.request import (
    at_fitting_size,
    remembered,
    wanted_engine,
    wanted_images,
    wanted_labels,
    wanted_recipe,
)
from insclr.training.stages import Training


def train(
    images: str | Path | ImageList | None,
    out: str | Path,
    recipe: str | Path | Recipe | None = None,
    *,
    changes: tuple[str, ...] = (),
    labels: str | Path | None = None,
    resume: bool = False,
    device: str = "auto",
    cache: str | Path | None = None,
    feedback: FeedbackGroups | None = None,
    engine: str = "auto",
) -> Model:
    """Teach a network the instances in `images`; the run folder `out` holds all that it leaves.

    `labels` serve only to log precision and mAP, but for methods that are meant to learn from them. `cache` keeps
    pooled features for other runs on the images. `feedback` holds groups of the images that people named.
    `engine` describes the images on a CPU; torch trains. A resumed run remembers its images, recipe, labels, cache,
    feedback and engine.
    """
    out = Path(out)
    require_engine(engine, device)  # before anything is made
    wanted = wanted_recipe(out, recipe, changes, resume)
    chosen = pick_device(device)
    if feedback is not None and not any(create_method(each.method).teachable for each in wanted.rounds):
        raise UserError(
            f"The recipe {wanted.name} cannot learn from answers: choose fast, default or thorough."
        )
    with joined() as ranks:
        listed = wanted_images(images, out, resume) if ranks.first else None
        wanted = ranks.from_first(at_fitting_size(wanted, listed) if listed is not None else None)
        photos = ranks.from_first(None if listed is None else len(listed))
        for each in wanted.rounds:
            if each.train == "all":  # refuses too many ranks now rather than in hours
                ranks.share(fit_to_collection(each, photos).tuples)
        with ranks.in_turn():
            given = {
                "images": "" if isinstance(images, ImageList) else _absolute(images),
                "labels": _absolute(labels),
                "cache": _absolute(cache),
                "engine": "" if engine == "auto" else engine,
                "answers": feedback.source if feedback else "",
            }
            truth = wanted_labels(wanted, labels or remembered(out, "labels", resume), listed)
            run = RunFolder(out, wanted, resume=resume, first=ranks.first, options=given)
        if not ranks.from_first(run.finished):
            features = Path(cache or run.option("cache") or run.cache)
            by = wanted_engine(engine, run.option("engine"), device)
            try:
                with run.writing() if ranks.first else nullcontext():
                    Training(run, wanted, listed, truth, chosen, features, ranks, by, feedback).complete()
            except BaseException:
                if ranks.first:
                    run.abandon()
                raise
        return load_model(run.path / MODEL_NAME)


def _absolute(path: str | Path | None) -> str:
    return str(Path(path).absolute()) if path else ""
