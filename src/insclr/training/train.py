"""A whole run: images and a recipe in, a run folder with a trained model out. Every stage can be resumed."""

import copy
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from insclr.data.images import ImageList, list_images, require_usable
from insclr.data.labels import Labels, match_instances, read_labels
from insclr.data.loader import default_workers
from insclr.data.skipped import Skipped
from insclr.errors import UserError
from insclr.evaluation.evaluate import evaluate_labels
from insclr.methods import create_method
from insclr.methods.method import Method, Needs, Prepared, RoundStart
from insclr.mining.calibrate import ACTIVE_NEGATIVES, exceeded_by, random_pairs
from insclr.mining.precision import mean_precision
from insclr.model.device import pick_device
from insclr.model.model_file import MODEL_NAME, Model, load_model, save_model
from insclr.model.network import create_network
from insclr.model.refined import RefinedLinear
from insclr.ranks import Ranks, joined
from insclr.recipe import Recipe, RoundRecipe, load_recipe
from insclr.run_folder import RunFolder
from insclr.tracking import SilentTracker, Tracker, read_metrics
from insclr.training.cpu import keep_freed_memory
from insclr.training.features import PooledFeatures
from insclr.training.fit import fit_to_collection
from insclr.training.guard import MIN_POSITIVES, Health, measure, worse
from insclr.training.inspect import inspect_method
from insclr.training.round import Round, Trained, train_round
from insclr.training.round_features import RoundFeatures
from insclr.training.sources import Source
from insclr.training.sources.images import ImageSource
from insclr.training.sources.maps import MapSource
from insclr.training.sources.pooled import PooledSource
from insclr.training.start import apply_start, mix_with_start, pca_start, views_start

_SEEN_IMAGES = 100  # files looked for to tell whether a rank sees the images


def train(
    images: str | Path | ImageList,
    out: str | Path,
    recipe: str | Path | Recipe = "default",
    *,
    changes: tuple[str, ...] = (),
    labels: str | Path | None = None,
    resume: bool = False,
    device: str = "auto",
    cache: Path | None = None,
) -> Model:
    """Teach a network the instances in `images`; the run folder `out` holds all that it leaves.

    `labels` serve only to log precision and mAP. `cache` keeps pooled features for other runs on the images.
    """
    if not isinstance(recipe, Recipe):
        recipe = load_recipe(recipe, changes)
    with joined() as ranks:
        for each in recipe.rounds:
            if each.train == "all":
                ranks.share(each.tuples)  # refuses too many ranks now rather than in hours
        with ranks.in_turn():
            listed = images if isinstance(images, ImageList) else list_images(images) if ranks.first else None
            run = RunFolder(Path(out), recipe, resume=resume, first=ranks.first)
        if not ranks.from_first(run.finished):
            with run.writing() if ranks.first else nullcontext():
                _Training(run, recipe, listed, labels, device, cache, ranks).complete()
        return load_model(run.path / MODEL_NAME)


class _Training:
    """The stages of one run, in order: start, rounds, finish."""

    def __init__(
        self,
        run: RunFolder,
        recipe: Recipe,
        images: ImageList | None,
        labels: str | Path | None,
        device: str,
        cache: Path | None,
        ranks: Ranks,
    ) -> None:
        self.run = run
        self.recipe = recipe
        self.ranks = ranks
        self.device = pick_device(device)
        if self.device.type == "cpu":
            keep_freed_memory()
        self.skipped = Skipped()
        self.skipped.read(run.skipped_file)  # of the part of a resumed run that is done
        workers = max(1, default_workers() // ranks.local_world)
        self.workers = workers if recipe.workers < 0 else recipe.workers
        with ranks.in_turn():
            self.listed = run.images(images)
        require_images(self.listed, ranks)
        self.features = RoundFeatures(
            recipe, self.listed, cache or run.path / "cache", self.workers, self.skipped, ranks
        )
        self.labels = read_labels(labels) if labels else None

    def complete(self) -> None:
        """Do what is still to be done and write the model."""
        run, ranks = self.run, self.ranks
        torch.manual_seed(self.recipe.seed)
        self.network = create_network(self.recipe.network).to(self.device)
        done = ranks.from_first(run.finished_rounds())
        self.tracker = Tracker(run.path, after=run.resume_point()) if ranks.first else SilentTracker()
        try:
            if done:
                run.load_round(done, self.network)
            self._start(done)
            for index in range(done, len(self.recipe.rounds)):
                self._round(index)
            self._finish()
        finally:
            self.tracker.close()
            if ranks.first:
                self.skipped.write(run.skipped_file)

    def _start(self, done: int) -> None:
        """Find the usable images and, in a new run, give the FC its start."""
        run, ranks, first = self.run, self.ranks, self.recipe.rounds[0]
        features = None
        if not done:
            features = self.features.pooled(self.network, first, create_method(first.method).needs)
        with ranks.in_turn():
            self.usable = run.usable(features.seen if features else None)
        self.skipped.add_others(self.listed, self.usable.tolist())
        if ranks.first:
            self.skipped.write(run.skipped_file)
        require_usable(len(self.usable), self.listed.root)
        self.images = self.listed.subset(self.usable.tolist())
        self.instances = match_instances(self.labels, self.images) if self.labels else None
        if features is not None and ranks.first:
            self._start_fc(features.of(self.usable))
        ranks.copy_from_first(self.network)
        self.size = ranks.from_first(run.size())

    def _start_fc(self, features: PooledFeatures) -> None:
        wanted, fc = self.recipe.network, self.network.fc
        if not isinstance(fc, nn.Linear) or wanted.start == "random":
            return
        if wanted.start == "pca":
            start = pca_start(features.plain, self.network.dim, wanted.start_power)
        else:
            settings = self.recipe.rounds[0].method
            start = views_start(features.plain, features.views, self.network.dim, settings, self.recipe.seed)
        apply_start(fc, start)
        self.run.note_start(start.size, start.reasons, fc)

    def _round(self, index: int) -> None:
        number = index + 1
        recipe = fit_to_collection(self.recipe.rounds[index], len(self.images))
        method = create_method(recipe.method)
        untrained = index == 0 and self.recipe.network.start == "random" and self.network.fc is not None
        start = self._round_start(number, recipe, method.needs, untrained_fc=untrained)
        prepared = method.prepare(start)
        margin, reasons = self._margin(recipe, start)
        self._note_start(number, start, prepared, margin, reasons)
        found = prepared.positives_per_image
        if self.recipe.guard and found is not None and found < MIN_POSITIVES:
            self._skip(number, found)
            return
        self._inspect(number, "start", method, {**prepared.criteria, "margin": margin})
        before = self._health(start) if self.recipe.guard else None
        kept = copy.deepcopy(self.network.state_dict())
        trained = self._train(self._make_round(index, recipe, method, margin))
        if before is not None:
            self._keep_or_step_back(number, recipe, method.needs, before, kept, trained)
        if number == len(self.recipe.rounds) and method.needs.plain:
            # Its banks are as new as they get; a method that decides once a round is asked again in the end.
            self._inspect(number, "end", method, {**prepared.criteria, "margin": margin})
        self._end_round(number)

    def _round_start(
        self, number: int, recipe: RoundRecipe, needs: Needs, *, untrained_fc: bool = False
    ) -> RoundStart:
        """The collection as the network sees it now."""
        features = self.features.pooled(self.network, recipe, needs).of(self.usable)
        return RoundStart(
            network=self.network,
            plain=features.plain,
            views=features.views,
            tuples=recipe.tuples,
            seed=self._seed(number),
            folder=self.run.round_folder(number) / "scratch",
            size=self.size,
            untrained_fc=untrained_fc,
            ranks=self.ranks,
        )

    def _margin(self, recipe: RoundRecipe, start: RoundStart) -> tuple[float, tuple[str, ...]]:
        """The margin of the loss, measured where the recipe leaves it to the collection."""
        if recipe.loss.margin != "auto":
            return recipe.loss.margin, ()
        margin = float(self.ranks.from_first(exceeded_by(random_pairs(start.descriptors), ACTIVE_NEGATIVES)))
        return margin, (f"margin = {margin:.3g}: {ACTIVE_NEGATIVES:.0%} of random pairs are more similar",)

    def _make_round(self, index: int, recipe: RoundRecipe, method: Method, margin: float) -> Round:
        number = index + 1
        return Round(
            number=number,
            recipe=recipe,
            network=self.network,
            source=self._source(number, recipe, method),
            method=method,
            margin=margin,
            folder=self.run.round_folder(number),
            tracker=self.tracker,
            seed=self.recipe.seed,
            checkpoint_every=self.recipe.checkpoint_every,
            keep_checkpoints=self.recipe.keep_checkpoints,
            seconds=self._budget(index),
            instances=self.instances,
            # Cached features are seconds of work: the first rank does it alone, the others wait for its weights.
            ranks=self.ranks if recipe.train == "all" else Ranks(),
        )

    def _source(self, number: int, recipe: RoundRecipe, method: Method) -> Source:
        seed, needs = self._seed(number), method.needs
        if recipe.train == "all":
            slots = method.sampler.step(0).shape[1]
            return ImageSource(
                self.network,
                method,
                self.images,
                recipe,
                seed=seed,
                workers=self.workers,
                skipped=self.skipped,
                cache=self.features.decoded(self.images, recipe, needs, slots),
                ranks=self.ranks,
            )
        scales = [
            self.features.at_scale(self.network, recipe, scale).of(self.usable).plain
            for scale in needs.scales
        ]
        if recipe.train == "fc":
            pooled = self.features.pooled(self.network, recipe, needs).of(self.usable)
            return PooledSource(self.network, method, pooled.plain, pooled.views, tuple(scales), seed=seed)
        maps = self.features.maps(self.network, recipe).of(self.usable)
        sides = [round(scale * recipe.plain_size) for scale in needs.scales]
        return MapSource(
            self.network,
            method,
            maps.plain,
            maps.views,
            tuple(zip(sides, scales, strict=True)),
            plain_size=recipe.plain_size,
            augmented_size=recipe.augmented_size,
            seed=seed,
        )

    def _train(self, this: Round) -> Trained:
        """Train where there is something to do for this rank, then share the weights."""
        trained = Trained(0, 0.0)
        if self.ranks.first or not this.ranks.alone:
            if this.recipe.refine and isinstance(self.network.fc, nn.Linear):
                self.network.fc = RefinedLinear(self.network.fc)
            trained = train_round(this)
            if isinstance(self.network.fc, RefinedLinear):
                self.network.fc = self.network.fc.folded()
            steps, seconds = trained.steps, trained.seconds
            self.tracker.event(this.number, "end", step=steps, steps=steps, seconds=seconds)
        self.ranks.copy_from_first(self.network)
        return trained

    def _skip(self, number: int, found: float) -> None:
        """Do not train where too few pairs are safe: the network stays as it is."""
        message = (
            f"Round {number} was left out: only {found:.2f} safe pairs an image were found, and training on fewer "
            f"than {MIN_POSITIVES:g} does more harm than good. The model keeps its start."
        )
        self.tracker.event(number, "guard", step=0, message=message, action="skip", pairs=found)
        self._end_round(number)

    def _health(self, start: RoundStart) -> Health | None:
        if not len(start.views):
            return None
        return measure(start.descriptors, self.network.describe_pooled(start.views[0]))

    def _keep_or_step_back(
        self,
        number: int,
        recipe: RoundRecipe,
        needs: Needs,
        before: Health,
        kept: dict[str, Tensor],
        trained: Trained,
    ) -> None:
        """Undo a round that the guard finds worse than what it started from."""
        after = self._health(self._round_start(number, recipe, needs))
        assert after is not None
        reason = self.ranks.from_first(worse(before, after))
        if reason:
            self.network.load_state_dict(kept)
        self.tracker.event(
            number,
            "guard",
            step=trained.steps,
            action="step back" if reason else "ok",
            message=f"Round {number} was undone: {reason}." if reason else f"Round {number} was kept.",
            found=after.found,
            alike=after.alike,
            spread=after.spread,
        )

    def _end_round(self, number: int) -> None:
        if self.ranks.first:
            self.run.end_round(number, self.network)
        self.ranks.barrier()
        if self.ranks.first:
            shutil.rmtree(self.run.round_folder(number) / "scratch", ignore_errors=True)

    def _note_start(
        self, number: int, start: RoundStart, prepared: Prepared, margin: float, reasons: tuple[str, ...]
    ) -> None:
        point = self.run.resume_point()
        if not self.ranks.first or (point is not None and point >= (number, 0)):
            return  # another rank's task, or written before the interruption
        precision = None
        if self.instances is not None and prepared.candidates is not None and prepared.positive is not None:
            everyone = torch.arange(len(start))
            precision = mean_precision(
                self.instances, everyone, prepared.candidates.long(), prepared.positive
            )
        self.tracker.event(
            number,
            "start",
            reasons=[*(self.run.start_reasons() if number == 1 else ()), *prepared.reasons, *reasons],
            criteria={**prepared.criteria, "margin": margin},
            map=self._map(start.descriptors) if self.labels else None,
            pairs=prepared.positives_per_image,
            pair_precision=precision,
        )

    def _inspect(
        self, number: int, moment: Literal["start", "end"], method: Method, criteria: dict[str, Any]
    ) -> None:
        if not self.ranks.first or (moment == "start" and self.run.inspection(number, "start") is not None):
            return  # another rank's task, or done before an interruption
        seen = inspect_method(method, criteria, self.images, self.instances)
        if seen is not None:
            self.run.save_inspection(number, moment, seen)

    def _finish(self) -> None:
        """Mix the FC with its start, take a last look at the network that ships, and write it."""
        number, recipe = len(self.recipe.rounds), fit_to_collection(self.recipe.rounds[-1], len(self.images))
        if self.recipe.network.keep_start and isinstance(self.network.fc, nn.Linear):
            mix_with_start(self.network.fc, self.run.start_fc(), self.recipe.network.keep_start)
        method = create_method(recipe.method)
        if self.labels or not method.needs.plain:
            end = self._round_start(number, recipe, method.needs)
            if self.labels and self.ranks.first:
                self.tracker.event(number + 1, "finish", map=self._map(end.descriptors))
            if not method.needs.plain:
                self._inspect(number, "end", method, dict(method.prepare(end).criteria))
        for skipped in self.ranks.collect(list(self.skipped)):
            for path, reason in skipped:
                self.skipped.add(path, reason)
        if self.ranks.first:
            shutil.rmtree(self.run.round_folder(number) / "scratch", ignore_errors=True)
            self.skipped.write(
                self.run.skipped_file
            )  # the model is last: a run that has one lacks nothing else
            save_model(
                self.run.path / MODEL_NAME, self.network, self.recipe, {"images": str(len(self.images))}
            )
        self.ranks.barrier()

    def _map(self, descriptors: Tensor) -> float:
        """mAP of descriptors (N, D) over the images whose instance is known."""
        assert self.instances is not None
        known = (self.instances >= 0).nonzero()[:, 0].tolist()
        paths = tuple(self.images.paths[i] for i in known)
        names = tuple(str(int(self.instances[i])) for i in known)
        return evaluate_labels(descriptors[known].float(), Labels(self.images.root, paths, names)).map

    def _seed(self, number: int) -> int:
        return self.recipe.seed * 1009 + number

    def _budget(self, index: int) -> float:
        """Seconds this round may take: an even share, among the rounds left, of what is left of the run's minutes."""
        budgeted = [i for i, each in enumerate(self.recipe.rounds) if each.train != "fc"]
        if not self.recipe.minutes or index not in budgeted:
            return 0.0
        spent = sum(
            float(record.get("seconds") or 0)
            for record in read_metrics(self.run.path)
            if record.get("event") == "end"
            and record["round"] - 1 in budgeted
            and record["round"] - 1 < index
        )
        left = 60 * self.recipe.minutes - self.ranks.from_first(spent)
        return float(max(1.0, left / sum(i >= index for i in budgeted)))


def require_images(images: ImageList, ranks: Ranks) -> None:
    """Refuse to train where this rank does not see the files that the first one lists."""
    step = max(1, len(images) // _SEEN_IMAGES)
    if ranks.first or any(images.file(i).exists() for i in range(0, len(images), step)):
        return
    raise UserError(
        f"This rank sees none of the images in {images.root}: mount them under the same path on every node."
    )
