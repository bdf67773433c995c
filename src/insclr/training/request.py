"""The request for a run: recipe, images and labels as the user gives them, or from the folder of a resumed run."""

from pathlib import Path

from insclr.data.check import usual_side
from insclr.data.images import ImageList, list_images
from insclr.data.labels import Labels, match_instances, read_labels
from insclr.errors import UserError
from insclr.options import TrainOptions
from insclr.recipe import Recipe, load_recipe
from insclr.run_folder import RunReader, kept_recipe


def recall_options(out: Path, asked: TrainOptions) -> TrainOptions:
    """The options; a resumed run keeps its labels, cache and engine where no others are asked for."""
    if not asked.resume or kept_recipe(out) is None:
        return asked
    kept = RunReader(out).option
    return asked.change(
        {
            "labels": asked.labels or kept("labels"),
            "cache": asked.cache or kept("cache"),
            "engine": asked.engine if asked.engine != "auto" else kept("engine") or "auto",
        }
    )


def choose_recipe(
    out: Path, recipe: str | Path | Recipe | None, changes: tuple[str, ...], resume: bool
) -> Recipe:
    """The recipe that was asked for; a resumed run has its own."""
    if isinstance(recipe, Recipe):
        return load_recipe(recipe, changes)
    kept = kept_recipe(out) if resume else None
    if not recipe and kept:
        return load_recipe(kept, changes, stored=True)
    return load_recipe(recipe or "default", changes)


def choose_images(images: str | Path | ImageList | None, out: Path, resume: bool) -> ImageList:
    """The images of the run: as they were when it began, if it is resumed."""
    source: str | Path | ImageList | None = images
    if resume and kept_recipe(out):
        run = RunReader(out)
        if len(run.images()):
            return run.images()
        source = images if images is not None else run.option("images")
    if source is None:
        raise UserError(
            "Name the images to learn from. Only --resume goes without: with the --out folder of an interrupted run."
        )
    return source if isinstance(source, ImageList) else list_images(source)


def fit_size(recipe: Recipe, images: ImageList) -> Recipe:
    """The recipe at its large size where most photos have as many pixels: small ones gain nothing but time."""
    if not recipe.large_size:
        return recipe
    fits = usual_side(images) >= recipe.large_size
    return recipe.at_size(recipe.large_size) if fits else recipe.with_(large_size=0)


def read_checked_labels(recipe: Recipe, labels: str | Path | None, images: ImageList | None) -> Labels | None:
    """The labels, checked before anything is made."""
    supervised = [each.method.name for each in recipe.rounds if each.method.supervised]
    if labels is None:
        if supervised:
            raise UserError(
                f"{supervised[0]} learns from labels: pass --labels CSV, or choose a recipe that needs none."
            )
        return None
    truth = read_labels(labels)
    if images is not None:
        match_instances(truth, images)  # refuses labels of other images
    return truth
