"""Train, then write the report: what `insclr train` and `insclr.train` do."""

import os
from pathlib import Path

from insclr.data.images import ImageList
from insclr.feedback.asking import feedback_groups
from insclr.model.model_file import Model
from insclr.progress import working
from insclr.recipe import Recipe
from insclr.report.run_report import write_report
from insclr.run_folder import RunReader, has_feedback, kept_answers
from insclr.training.request import choose_images
from insclr.training.run import train as train_run


def train(
    images: str | Path | ImageList | None,
    out: str | Path,
    recipe: str | Path | Recipe | None = None,
    *,
    minutes: float | None = None,
    changes: tuple[str, ...] = (),
    labels: str | Path | None = None,
    resume: bool = False,
    device: str = "auto",
    cache: str | Path | None = None,
    answers: str | Path | None = None,
    engine: str = "auto",
) -> Model:
    """Teach a network the instances in `images`; the run folder `out` holds the model, the log and the report.

    `recipe` is a name (`insclr recipes` lists them; "default" if none is given), a TOML file or a Recipe. `minutes`
    is the time for the rounds that train more than the last layer. `changes` are `key=value` settings of the recipe.
    `labels` serve only to log precision and mAP, but for recipes that say SUPERVISED. `resume` goes on with an
    interrupted run, which remembers all the rest: `train(None, out, resume=True)`. `cache` keeps features for other
    runs on the same images. `answers` is a store whose names and answers are learned from. `engine` describes the
    images on a CPU: auto, torch, onnx or openvino; torch trains.

    >>> model = insclr.train("PHOTOS", "RUN", "fast")
    >>> model.network.dim
    512
    """
    if minutes is not None:
        changes = (*changes, f"minutes={float(minutes)}")
    # Under torchrun the first rank reads and writes for all.
    first = os.environ.get("RANK", "0") == "0"
    store = (kept_answers(Path(out)) if resume else None) or answers
    feedback = None
    if first and store is not None and not (resume and has_feedback(Path(out))):
        images = choose_images(images, Path(out), resume)
        feedback = feedback_groups(store, images)
    model = train_run(
        images,
        out,
        recipe,
        changes=changes,
        labels=labels,
        resume=resume,
        device=device,
        cache=cache,
        feedback=feedback,
        engine=engine,
    )
    # A run that was killed before its report gets it on --resume.
    if first and (not resume or not RunReader(Path(out)).reported):
        with working("writing the report"):
            write_report(out)
    return model
