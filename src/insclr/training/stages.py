"""The stages of a run, in order: start, rounds, finish. Each can be resumed."""

import copy
import logging
import shutil
import time
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from insclr.data.feedback_groups import FeedbackGroups
from insclr.data.images import ImageList, require_usable, require_visible
from insclr.data.labels import Labels, match_instances
from insclr.data.skipped import Skipped
from insclr.data.workers import default_workers
from insclr.methods import create_method
from insclr.methods.calibrated import CalibratedSettings
from insclr.methods.method import Method, Needs, Prepared, RoundStart
from insclr.mining.calibrate import ACTIVE_NEGATIVES, exceeded_by, random_pairs
from insclr.mining.consistency import PairTrust
from insclr.model.model_file import MODEL_NAME, save_model
from insclr.model.network import create_network, digest_weights
from insclr.model.refined import RefinedLinear
from insclr.progress import followed_by, say, working
from insclr.ranks import Ranks
from insclr.recipe import Recipe, RoundRecipe
from insclr.run_folder import RunFolder
from insclr.tracking import SilentTracker, Tracker, read_metrics
from insclr.training.cpu import keep_freed_memory
from insclr.training.features import PooledFeatures
from insclr.training.fit import fit_to_collection
from insclr.training.guard import Health, disbelieved, measure, unsafe, worse
from insclr.training.initial_fc import average_with_initial, pca_fc, set_fc, views_fc
from insclr.training.plan import Plan
from insclr.training.round import Round, Trained, train_round
from insclr.training.round_features import RoundFeatures, require_late
from insclr.training.run_logger import RunLogger
from insclr.training.schedule import seconds_for_round
from insclr.training.sources.choose import choose_source

logger = logging.getLogger(__name__)


class Training:
    """The stages of one run, in order: start, rounds, finish."""

    def __init__(
        self,
        run: RunFolder,
        recipe: Recipe,
        images: ImageList | None,
        labels: Labels | None,
        device: torch.device,
        cache: Path,
        ranks: Ranks,
        engine: str,
        feedback: FeedbackGroups | None = None,
    ) -> None:
        self.run = run
        self.feedback = feedback  # about all listed images; about the usable ones once they are known
        self.recipe = recipe
        self.ranks = ranks
        self.device = device
        if self.device.type == "cpu":
            keep_freed_memory()
        self.skipped = Skipped()
        self.skipped.read(run.skipped_file)  # of the part of a resumed run that is done
        workers = max(1, default_workers() // ranks.local_world)
        self.workers = workers if recipe.workers < 0 else recipe.workers
        with ranks.in_turn():
            self.listed = run.images(images)
        if not ranks.first:
            require_visible(self.listed)
        self.features = RoundFeatures(recipe, self.listed, cache, self.workers, self.skipped, ranks, engine)
        self.labels = labels

    def complete(self) -> None:
        """Do what is still to be done and write the model."""
        run, ranks = self.run, self.ranks
        torch.manual_seed(self.recipe.seed)
        with working("loading the network"):
            self.network = create_network(self.recipe.network).to(self.device)
        if any(each.train == "late" for each in self.recipe.rounds):
            require_late(self.network)  # now, rather than when all photos are described
            self.features.early = digest_weights(self.network.backbone.early_state())
        done = ranks.from_first(run.finished_rounds())
        self.plan = Plan(self.recipe, len(self.listed), done)
        say(self.plan.line())
        self.tracker = Tracker(run.path, after=run.resume_point()) if ranks.first else SilentTracker()
        try:
            if done:
                run.load_round(done, self.network)
            with followed_by(self.plan.seconds_after):
                self._start(done)
                for index in range(done, len(self.recipe.rounds)):
                    self._round(index)
                with working("finishing the model"):
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
            needs = create_method(first.method).needs
            if self.recipe.network.initial_fc == "views":
                needs = replace(needs, views=True)
            began = time.monotonic()
            with working("looking at the photos"):
                features = self.features.pooled(self.network, first, needs)
            self.plan.described(len(features.seen) * (1 + len(features.views)), time.monotonic() - began)
        with ranks.in_turn():
            usable = run.usable(features.seen if features else None)
        self.skipped.add_others(self.listed, usable.tolist())
        if ranks.first:
            self.skipped.write(run.skipped_file)
        require_usable(len(usable), self.listed.root)
        self.features.usable = usable
        self.images = self.listed.subset(usable.tolist())
        self.instances = match_instances(self.labels, self.images) if self.labels else None
        with ranks.in_turn():
            self.feedback = run.feedback(self.feedback.subset(usable) if self.feedback else None)
        if features is not None and ranks.first:
            with working("measuring the collection"):
                self._start_fc(features.of(usable))
        ranks.copy_from_first(self.network)
        self.size = ranks.from_first(run.size())
        self.watch = RunLogger(run, self.tracker, self.images, self.instances, ranks)

    def _start_fc(self, features: PooledFeatures, *, mined: bool = True) -> None:
        wanted, fc = self.recipe.network, self.network.fc
        if not isinstance(fc, nn.Linear) or wanted.initial_fc == "random":
            return
        if wanted.initial_fc == "pca":
            initial = pca_fc(features.plain, self.network.dim, wanted.initial_fc_power)
        else:
            settings = self.recipe.rounds[0].method
            initial = views_fc(
                features.plain,
                features.views,
                self.network.dim,
                settings if isinstance(settings, CalibratedSettings) else CalibratedSettings(),
                self.recipe.seed,
                self.feedback,
                PairTrust.UNTESTED if mined else PairTrust.UNTRUSTED,
            )
        set_fc(fc, initial)
        self.run.note_start(initial.size, initial.reasons, fc, mined=mined)

    def _renew_start(self, rounds: int) -> bool:
        """Make the start again if the last of so many rounds has changed the features; whether it has."""
        if not self.recipe.network.renew_initial_fc or rounds not in self._learned(rounds):
            return False
        before = self.recipe.rounds[rounds - 1]
        if before.train == "fc":
            return False
        features = self.features.pooled(self.network, before, Needs(views=True))
        if self.ranks.first:
            self._start_fc(features, mined=self.run.believes_mined())
        self.ranks.copy_from_first(self.network)
        self.size = self.ranks.from_first(self.run.size())
        return True

    def _start_without_mined(self, features: RoundStart) -> None:
        """Begin again, from views alone where the start takes pairs, and note that mined ones are not believed."""
        if self.ranks.first:
            self._start_fc(PooledFeatures(features.plain, features.views, self.run.usable(None)), mined=False)
        self.ranks.copy_from_first(self.network)

    def _round(self, index: int) -> None:
        number = index + 1
        recipe = fit_to_collection(self.recipe.rounds[index], len(self.images))
        method = create_method(recipe.method)
        if method.needs.labels:
            logger.warning(
                "round %d LEARNS FROM THE LABELS (%s): no unsupervised result", number, recipe.method.name
            )
        untrained = index == 0 and self.recipe.network.initial_fc == "random" and self.network.fc is not None
        self.plan.begin_round(index)
        if self.feedback is None and not self._believes_mined():
            self.watch.skipped(number, "what was mined before cannot be believed", None)
            self._end_round(number)
            return
        with working(f"round {number}: looking for photos of the same thing"):
            renewed = self._renew_start(index)
            start = self._round_start(number, recipe, method.needs, untrained_fc=untrained)
            prepared = self._prepare(method, recipe, start)
            if self.feedback is not None and disbelieved(prepared):
                self._start_without_mined(start)
                start = self._round_start(number, recipe, method.needs, untrained_fc=untrained)
                prepared = self._prepare(method, recipe, start)
            self.watch.start(
                number, start, prepared, new_start=renewed or number == 1, labels_used=method.needs.labels
            )
        if reason := unsafe(prepared) if self.recipe.guard else "":
            self.watch.skipped(number, reason, prepared.positives_per_image)
            if disbelieved(prepared):
                self._start_without_mined(start)
            self._end_round(number)
            return
        with working(f"round {number}: before it begins"):
            self.watch.inspect(number, "start", method, prepared)
            before = self._health(start) if self.recipe.guard else None
            kept = copy.deepcopy(self.network.state_dict())
            this = self._make_round(index, recipe, method, prepared)
        trained = self._train(this)
        self.plan.end_round(trained.steps)
        with working(f"round {number}: looking at what it learned"):
            if before is not None:
                self._keep_or_step_back(number, recipe, method.needs, before, kept, trained)
            if number == len(self.recipe.rounds) and method.needs.plain:
                # Its banks are as new as they get; a method that decides once a round is asked again in the end.
                self.watch.inspect(number, "end", method, prepared)
            self._end_round(number)

    def _round_start(
        self, number: int, recipe: RoundRecipe, needs: Needs, *, untrained_fc: bool = False
    ) -> RoundStart:
        """The collection as the network sees it now."""
        features = self.features.pooled(self.network, recipe, needs)
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
            kept=self.run.path / "kept",
            instances=self.instances if needs.labels else None,
            # Later, what was learned agrees with itself, right or wrong.
            doubted=self.recipe.guard and not self._learned(number - 1) and self._believes_mined(),
            feedback=self.feedback,
            believed=self.feedback is None or self._believes_mined(),
        )

    def _believes_mined(self) -> bool:
        return not self.recipe.guard or bool(self.ranks.from_first(self.run.believes_mined()))

    def _learned(self, rounds: int) -> set[int]:
        """Which of so many rounds were trained and kept."""
        before = [record for record in read_metrics(self.run.path) if record["round"] <= rounds]
        trained = {one["round"] for one in before if one.get("event") == "end" and one["steps"]}
        undone = {one["round"] for one in before if one.get("action") == "step back"}
        learned: set[int] = self.ranks.from_first(trained - undone)
        return learned

    def _prepare(self, method: Method, recipe: RoundRecipe, start: RoundStart) -> Prepared:
        """Let the method prepare itself; measure the margin of the loss where that is left to the collection."""
        prepared = method.prepare(start)
        margin, reasons = recipe.loss.margin, prepared.reasons
        if recipe.method.own_loss or recipe.loss.form == "softmax":
            return prepared
        if margin == "auto":
            pairs = random_pairs(start.descriptors)
            margin = float(self.ranks.from_first(exceeded_by(pairs, ACTIVE_NEGATIVES)))
            why = f"{ACTIVE_NEGATIVES:.0%} of random pairs are more similar"
            reasons = (*reasons, f"margin = {margin:.3g}: {why}")
        return replace(prepared, criteria={**prepared.criteria, "margin": margin}, reasons=reasons)

    def _make_round(self, index: int, recipe: RoundRecipe, method: Method, prepared: Prepared) -> Round:
        number = index + 1
        ranks = self._sharing(recipe)
        return Round(
            number=number,
            recipe=recipe,
            network=self.network,
            source=choose_source(
                self.network,
                method,
                self.images,
                recipe,
                self.features,
                seed=self._seed(number),
                workers=self.workers,
                skipped=self.skipped,
                ranks=ranks,
            ),
            method=method,
            margin=float(prepared.criteria.get("margin", 0.0)),
            folder=self.run.round_folder(number),
            tracker=self.tracker,
            seed=self.recipe.seed,
            checkpoint_every=self.recipe.checkpoint_every,
            keep_checkpoints=self.recipe.keep_checkpoints,
            seconds=self.ranks.from_first(seconds_for_round(self.recipe, index, read_metrics(self.run.path))),
            instances=self.instances,
            ranks=ranks,
        )

    def _sharing(self, recipe: RoundRecipe) -> Ranks:
        """The ranks that share the steps of a round; where one does it alone, the others wait for its weights.

        The last layer on cached features is seconds of work. A small collection may have too few tuples for all.
        """
        shared = recipe.train == "all" or (recipe.train == "late" and recipe.tuples >= self.ranks.world)
        return self.ranks if shared else Ranks()

    def _train(self, this: Round) -> Trained:
        """Train where there is something to do for this rank, then share the weights."""
        trained = Trained(0, 0.0)
        if self.ranks.first or not this.ranks.alone:
            if this.recipe.refine and isinstance(self.network.fc, nn.Linear):
                self.network.fc = RefinedLinear(self.network.fc)
            trained = train_round(this)
            if isinstance(self.network.fc, RefinedLinear):
                self.network.fc = self.network.fc.folded()
            self.watch.end(this.number, trained, this.method)
        self.ranks.copy_from_first(self.network)
        return trained

    def _health(self, start: RoundStart) -> Health | None:
        if start.untrained_fc or not len(start.views):
            return None
        return measure(start.descriptors, lambda some: self.network.describe_pooled(start.views[0][some]))

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
        self.watch.guarded(number, trained.steps, after, reason)

    def _end_round(self, number: int) -> None:
        if self.ranks.first:
            self.run.end_round(number, self.network)
        self.ranks.barrier()
        if self.ranks.first:
            shutil.rmtree(self.run.round_folder(number) / "scratch", ignore_errors=True)

    def _finish(self) -> None:
        """Give the FC its last form, take a last look at the network that ships, and write it."""
        number, recipe = len(self.recipe.rounds), fit_to_collection(self.recipe.rounds[-1], len(self.images))
        if self._renew_start(number):
            self.watch.renewed(number)
        elif self.recipe.network.initial_fc_weight and isinstance(self.network.fc, nn.Linear):
            average_with_initial(self.network.fc, self.run.start_fc(), self.recipe.network.initial_fc_weight)
        method = create_method(recipe.method)
        asked_again = method.explains and not method.needs.plain
        if self.labels or asked_again:
            end = self._round_start(number, recipe, method.needs)
            self.watch.finish(number + 1, end)
            if asked_again:
                self.watch.inspect(number, "end", method, method.prepare(end))
        for skipped in self.ranks.collect(list(self.skipped)):
            for path, reason in skipped:
                self.skipped.add(path, reason)
        if self.ranks.first:
            shutil.rmtree(self.run.round_folder(number) / "scratch", ignore_errors=True)
            # The model is last: a run that has one lacks nothing else.
            self.skipped.write(self.run.skipped_file)
            notes = {"images": str(len(self.images))}
            if any(each.method.supervised for each in self.recipe.rounds):
                notes["labels"] = "this model was TRAINED WITH LABELS"
            if self.feedback is not None:
                notes["answers"] = (
                    f"{int(self.feedback.decided.sum())} images are of groups that people spoke about"
                )
            save_model(self.run.path / MODEL_NAME, self.network, self.recipe, notes)
        self.ranks.barrier()

    def _seed(self, number: int) -> int:
        return self.recipe.seed * 1009 + number
