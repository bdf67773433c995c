"""A whole run, top to bottom: images and a recipe in, a run folder with a trained model out."""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from insclr.data.images import ImageList, Skipped, require_usable, require_visible
from insclr.data.labels import Labels, match_instances
from insclr.data.loader import Collection
from insclr.data.tuples import FeedbackGroups
from insclr.data.workers import default_workers
from insclr.engine.choose import require_engine
from insclr.errors import UserError
from insclr.methods import create_method
from insclr.mining.candidates import PairTrust
from insclr.model.device import keep_freed_memory, pick_device
from insclr.model.model_file import MODEL_NAME, Model, load_model, save_model
from insclr.model.network import create_network
from insclr.options import TrainOptions
from insclr.progress import followed_by, say, working
from insclr.ranks import Ranks, join_ranks
from insclr.recipe import Recipe, RoundRecipe
from insclr.run_folder import RunFolder, has_feedback
from insclr.tracking import SilentTracker, Tracker
from insclr.training.initial_fc import average_with_initial, initialise_fc, renew_initial_fc
from insclr.training.plan import (
    Plan,
    choose_images,
    choose_recipe,
    fit_to_collection,
    read_checked_labels,
    recall_options,
)
from insclr.training.round import run_round
from insclr.training.run_log import log_result, save_inspection
from insclr.training.state import RoundFeatures, Run
from insclr.training.view_size import fit_size

FindGroups = Callable[[ImageList], FeedbackGroups | None]


def train(
    images: str | Path | ImageList | None,
    out: str | Path,
    recipe: str | Path | Recipe | None = None,
    options: TrainOptions = TrainOptions(),
    *,
    feedback: FeedbackGroups | None = None,
    find_groups: FindGroups | None = None,
    **fields: Any,
) -> Model:
    """Teach a network the instances in `images`; the run folder `out` holds all that it leaves.

    `labels` serve only to log precision and mAP, except for methods that are meant to learn from them. `cache` keeps
    pooled features for other runs on the images. `feedback` holds groups of the images that people named;
    `find_groups` may find groups that matched points prove. `engine` describes the images on a CPU; torch trains.
    A resumed run reads its images, recipe, labels, cache, feedback and engine from the folder.
    """
    out = Path(out)
    asked = recall_options(out, options.change(fields))
    require_engine(asked.engine, asked.device)  # before anything is made
    wanted = choose_recipe(out, recipe, asked.recipe_changes, asked.resume)
    chosen_device = pick_device(asked.device)
    learns_from_groups = any(create_method(each.method).learns_from_feedback for each in wanted.rounds)
    if feedback is not None and not learns_from_groups:
        raise UserError(f"The recipe {wanted.name} cannot learn from answers: choose fast or default.")
    with join_ranks() as ranks:
        listed = choose_images(images, out, asked.resume) if ranks.first else None
        fitted = None if listed is None else fit_size(wanted, listed, asked.engine, chosen_device)
        wanted, why_size = ranks.from_first(fitted)
        count = ranks.from_first(None if listed is None else len(listed))
        for each in wanted.rounds:
            if each.train == "all":  # refuses too many ranks now rather than in hours
                ranks.share(fit_to_collection(each, count).tuples)
        with ranks.in_turn():
            given = {
                "images": "" if isinstance(images, ImageList) else _absolute(images),
                "labels": _absolute(asked.labels),
                "cache": _absolute(asked.cache),
                "engine": "" if asked.engine == "auto" else asked.engine,
                "answers": feedback.source if feedback else "",
                "size": why_size,
                "local": asked.local,
            }
            truth = read_checked_labels(wanted, asked.labels, listed)
            folder = RunFolder(out, wanted, resume=asked.resume, first=ranks.first, options=given)
        if not ranks.from_first(folder.finished):
            job = Job(
                folder=folder,
                recipe=wanted,
                images=listed,
                labels=truth,
                feedback=feedback,
                find_groups=find_groups if learns_from_groups and asked.local == "auto" else None,
                device=chosen_device,
                cache=asked.cache or folder.cache,
                engine=asked.engine,
                ranks=ranks,
                clock=asked.clock,
            )
            with folder.writing() if ranks.first else nullcontext():
                run(job)
        return load_model(folder.path / MODEL_NAME)


@dataclass(frozen=True)
class Job:
    """What a run is made of: the checked request."""

    folder: RunFolder
    recipe: Recipe
    images: ImageList | None  # listed by the first rank alone
    labels: Labels | None
    feedback: FeedbackGroups | None  # about all listed images
    find_groups: FindGroups | None  # that matched points prove
    device: torch.device
    cache: Path
    engine: str
    ranks: Ranks
    clock: Callable[[], float]


def run(job: Job) -> None:
    """Describe the images, initialise the FC, train round by round, write the model; each stage can be resumed."""
    folder, recipe, ranks = job.folder, job.recipe, job.ranks
    if job.device.type == "cpu":
        keep_freed_memory()
    with ranks.in_turn():
        listed = folder.images(job.images)
    if not ranks.first:
        require_visible(listed)
    skipped = Skipped()
    skipped.read(folder.skipped_file)  # of the part of a resumed run that is done
    workers = recipe.workers if recipe.workers >= 0 else max(1, default_workers() // ranks.local_world)
    features = RoundFeatures(recipe, Collection(listed, workers, skipped), job.cache, ranks, job.engine)

    torch.manual_seed(recipe.seed)
    with working("loading the network"):
        network = create_network(recipe.network).to(job.device)
    if any(each.train == "late" for each in recipe.rounds):
        features.expect_maps(network)  # now, rather than when all images are described
    done = ranks.from_first(folder.finished_rounds())
    plan = Plan(recipe, len(listed), done, folder.option("size") or "")
    say(plan.line())
    with _open_tracker(job, skipped) as tracker, followed_by(plan.seconds_after):
        pooled = None
        if done:
            folder.load_round(done, network)
        else:
            needs = create_method(recipe.rounds[0].method).needs
            needs = replace(needs, views=needs.views or recipe.network.initial_fc == "views")
            began = time.monotonic()
            with working("extracting features"):
                pooled = features.pool_features(network, _of_initial_fc(recipe), needs)
            plan.note_describing(len(pooled.seen) * (1 + len(pooled.views)), time.monotonic() - began)

        # The readable images, numbered from 0: the collection of N images that all rounds see.
        with ranks.in_turn():
            usable = folder.usable(pooled.seen if pooled else None)
            is_new = ranks.first and not done and not has_feedback(folder.path)
            groups = add_proven_groups(job, listed) if is_new else job.feedback
            feedback = folder.feedback(groups.subset(usable) if groups else None)
        skipped.add_others(listed, usable.tolist())
        if ranks.first:
            skipped.write(folder.skipped_file)
        require_usable(len(usable), listed.root)
        features.usable = usable
        images = listed.subset(usable.tolist())
        instances = match_instances(job.labels, images) if job.labels else None
        this = Run(
            folder, recipe, network, features, images, instances, feedback, tracker, plan, ranks, job.clock
        )

        if pooled is not None:
            with working("measuring the collection"):
                pooled = pooled.of(usable)
                if ranks.first:
                    folder.save_pair_trust(PairTrust.UNTESTED)
                initialise_fc(this, pooled.plain, pooled.views)
        for index in range(done, len(recipe.rounds)):
            run_round(this, index)
            end_round(this, index + 1)
        with working("finishing the model"):
            finish(this)


def _of_initial_fc(recipe: Recipe) -> RoundRecipe:
    """The first round, with mild views for an initial FC that views decide: small crops would show other things."""
    if recipe.network.initial_fc != "views":
        return recipe.rounds[0]
    return recipe.rounds[0].with_(crop=RoundRecipe.model_fields["crop"].default, augmentation="paper")


def add_proven_groups(job: Job, listed: ImageList) -> FeedbackGroups | None:
    """The feedback of the job, with the groups that matched points prove."""
    proven = job.find_groups(listed) if job.find_groups else None
    if proven is None:
        return job.feedback
    say(f"learning from groups of {int(proven.proven.sum())} photos that matched points prove")
    return proven if job.feedback is None else job.feedback.add_proven(proven)


def end_round(this: Run, number: int) -> None:
    """Save the weights that the round ended with; remove its scratch files and its copies of banks."""
    if this.ranks.first:
        this.folder.end_round(number, this.network)
    this.ranks.barrier()
    if this.ranks.first:
        shutil.rmtree(this.scratch(number), ignore_errors=True)
        for copy in this.folder.round_folder(number).glob("step-*.bank"):  # at a million images 5 GB each
            copy.unlink()


def finish(this: Run) -> None:
    """Give the FC its final form, measure the network once more, and write it."""
    folder, ranks, skipped = this.folder, this.ranks, this.features.collection.skipped
    number, settings = len(this.recipe.rounds), this.recipe.network
    if renew_initial_fc(this, number):
        this.tracker.event(number, "renewed")
    elif settings.initial_fc_weight and isinstance(this.network.fc, nn.Linear):
        average_with_initial(this.network.fc, folder.initial_fc(), settings.initial_fc_weight)

    recipe = fit_to_collection(this.recipe.rounds[-1], len(this.images))
    method = create_method(recipe.method)
    decides_once = method.explains and not method.needs.plain
    if this.instances is not None or decides_once:
        end = this.start_round(number, recipe, method.needs)
        log_result(this, end)
        if decides_once:
            save_inspection(this, number, "end", method, method.prepare(end))

    for of_rank in ranks.collect(list(skipped)):
        for path, reason in of_rank:
            skipped.add(path, reason)
    if ranks.first:
        shutil.rmtree(this.scratch(number), ignore_errors=True)
        # The model is last: a run that has one lacks nothing else.
        skipped.write(folder.skipped_file)
        notes = {"images": str(len(this.images))}
        if any(each.method.supervised for each in this.recipe.rounds):
            notes["labels"] = "this model was TRAINED WITH LABELS"
        if this.feedback is not None:
            if decided := int(this.feedback.decided.sum()):
                notes["answers"] = f"{decided} images are of groups with feedback"
            if proven := int(this.feedback.proven.sum()):
                notes["matched points"] = f"{proven} images are of groups that matched points prove"
        save_model(folder.path / MODEL_NAME, this.network, this.recipe, notes)
    ranks.barrier()


@contextmanager
def _open_tracker(job: Job, skipped: Skipped) -> Iterator[Tracker]:
    """The log of the run; when the run ends or fails, it is closed and the `skipped` images are listed."""
    folder = job.folder
    tracker = Tracker(folder.path, after=folder.resume_point()) if job.ranks.first else SilentTracker()
    try:
        yield tracker
    finally:
        tracker.close()
        if job.ranks.first:
            skipped.write(folder.skipped_file)


def _absolute(path: str | Path | None) -> str:
    return str(Path(path).absolute()) if path else ""
