"""Train, then write the report: the work of `insclr train` and `insclr.train`."""

import os
from functools import partial
from pathlib import Path
from typing import Any

from insclr.data.images import ImageList
from insclr.feedback.asking import feedback_groups
from insclr.model.model_file import Model
from insclr.options import TrainOptions, show_options
from insclr.progress import working
from insclr.recipe import Recipe
from insclr.report.run_report import write_report
from insclr.retrieval.verified_groups import find_verified_groups
from insclr.run_folder import RunReader, has_feedback, kept_answers
from insclr.training.plan import choose_images
from insclr.training.run import train as train_run


@show_options
def train(
    images: str | Path | ImageList | None,
    out: str | Path,
    recipe: str | Path | Recipe | None = None,
    options: TrainOptions = TrainOptions(),
    **fields: Any,
) -> Model:
    """Train a network on the instances in `images`; the run folder `out` holds the model, the log and the report.

    `recipe` is a name (`insclr recipes` lists them; "default" if none is given), a TOML file or a Recipe. `minutes`
    is the time for the rounds that train more than the last layer. `changes` are `key=value` settings of the recipe.
    `labels` serve only to log precision and mAP, but for recipes that say SUPERVISED. `resume` continues an
    interrupted run, which remembers all the rest: `train(None, out, resume=True)`. `cache` keeps features for other
    runs on the same images. `answers` is a store whose names and answers are learned from. `engine` describes the
    images on a CPU: auto, torch, onnx or openvino; torch trains.

    >>> model = insclr.train("PHOTOS", "RUN", "fast")
    >>> model.network.dim
    512
    """
    given = options.change(fields)
    # Under torchrun the first rank reads and writes for all.
    first = os.environ.get("RANK", "0") == "0"
    store = (kept_answers(Path(out)) if given.resume else None) or given.answers
    feedback = None
    if first and store is not None and not (given.resume and has_feedback(Path(out))):
        images = choose_images(images, Path(out), given.resume)
        feedback = feedback_groups(store, images)
    find_groups = partial(find_verified_groups, store=store)
    model = train_run(images, out, recipe, given, feedback=feedback, find_groups=find_groups)
    # A run that was killed before its report gets it on --resume.
    if first and (not given.resume or not RunReader(Path(out)).reported):
        with working("writing the report"):
            write_report(out)
    return model
