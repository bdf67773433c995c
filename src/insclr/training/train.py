"""A whole run: images and a recipe in, a run folder with a trained model out. Every stage can be resumed."""

import copy
import dataclasses
import logging
import shutil
import time
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import Tensor, nn

from insclr.data.images import ImageList, list_images, require_usable
from insclr.data.labels import Labels, match_instances, read_labels
from insclr.data.loader import default_workers
from insclr.data.skipped import Skipped
from insclr.data.tuples import TupleSampler
from insclr.errors import UserError
from insclr.evaluation.evaluate import evaluate_labels
from insclr.memory.round_pool import map_large_pool, round_pool
from insclr.mining.calibrate import Calibration, calibrate
from insclr.mining.overlap import estimate_size, neighbour_overlap
from insclr.mining.verdicts import Verdicts, judge, votes
from insclr.model.model_file import MODEL_NAME, Model, load_model, save_model
from insclr.model.network import DescriptorNetwork, create_network
from insclr.model.refined import RefinedLinear
from insclr.neighbours.pool import Pool
from insclr.ranks import Ranks, joined
from insclr.recipe import Recipe, RoundRecipe, load_recipe
from insclr.report.inspection import inspect_round, load_inspection, save_inspection
from insclr.report.run_report import write_report
from insclr.run_folder import RunFolder
from insclr.tracking import SilentTracker, Tracker
from insclr.training.banks import RoundBanks, embed_all, embed_evidence, fill_banks, open_banks
from insclr.training.cpu import keep_freed_memory
from insclr.training.described import Described
from insclr.training.features import PooledFeatures
from insclr.training.fit import fit_to_collection
from insclr.training.guard import MIN_POSITIVES, Health, measure, worse
from insclr.training.rounds import Round, train_round
from insclr.training.sources import CachedSource, ImageSource, LateSource, Source
from insclr.training.start import apply_start, mix_with_start, pca_start, views_start
from insclr.training.step import announce

logger = logging.getLogger(__name__)
_SEEN_IMAGES = 100  # files looked for to tell whether a rank sees the images


def train(
    images: str | Path | ImageList,
    out: str | Path,
    recipe: str | Path | Recipe = "default",
    *,
    changes: tuple[str, ...] = (),
    labels: str | Path | None = None,
    resume: bool = False,
    device: str | None = None,
    cache: Path | None = None,
) -> Model:
    """Teach a network the particular things in `images`; the run folder `out` holds all that it leaves.

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
    """The state that the stages of one run share."""

    def __init__(
        self,
        run: RunFolder,
        recipe: Recipe,
        images: ImageList | None,
        labels: str | Path | None,
        device: str | None,
        cache: Path | None,
        ranks: Ranks,
    ) -> None:
        self.run = run
        self.recipe = recipe
        self.ranks = ranks
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        if self.device.type == "cpu":
            keep_freed_memory()
        self.cache = cache or run.path / "cache"
        self.skipped = Skipped()
        workers = max(1, default_workers() // ranks.local_world)
        self.workers = workers if recipe.workers < 0 else recipe.workers
        with ranks.in_turn():
            self.listed = run.images(images)
        _require_images(self.listed, ranks)
        self.described = Described(recipe, self.listed, self.cache, self.workers, self.skipped, ranks)
        self.labels = read_labels(labels) if labels else None

    def complete(self) -> None:
        """Do what is still to be done and write the model."""
        recipe, run, ranks = self.recipe, self.run, self.ranks
        torch.manual_seed(recipe.seed)
        network = create_network(recipe.network).to(self.device)
        done = ranks.from_first(run.finished_rounds())
        self.tracker = Tracker(run.path, after=run.resume_point()) if ranks.first else SilentTracker()
        try:
            if done:
                run.load_round(done, network)
            features = self.described.features(network, recipe.rounds[0]) if not done else None
            with ranks.in_turn():
                self.usable = run.usable(features.seen if features else None)
            require_usable(len(self.usable), self.listed.root)
            self.images = self.listed.subset(self.usable.tolist())
            self.instances = match_instances(self.labels, self.images) if self.labels else None
            if features is not None and ranks.first:
                self._start(network, features.of(self.usable))
            ranks.copy_from_first(network)
            self.size = ranks.from_first(run.size())
            for index in range(done, len(recipe.rounds)):
                self._round(index, network)
            self._end(network)
        finally:
            self.tracker.close()
            if ranks.first:
                self.skipped.write(run.path / "skipped.csv")
        if ranks.first:
            write_report(run.path)

    def _start(self, network: DescriptorNetwork, features: PooledFeatures) -> None:
        """Give the FC its start, and note the size of a thing that was seen on the way."""
        wanted, fc = self.recipe.network, network.fc
        if not isinstance(fc, nn.Linear) or wanted.start == "random":
            return
        if wanted.start == "pca":
            start = pca_start(features.plain, network.dim, wanted.start_power)
        else:
            first = fit_to_collection(self.recipe.rounds[0], len(self.images))
            start = views_start(features.plain, features.views, network.dim, first, self.recipe.seed)
        apply_start(fc, start)
        self.run.note_start(start.size, start.reasons, fc)

    def _round(self, index: int, network: DescriptorNetwork) -> None:
        recipe, number = self.recipe.rounds[index], index + 1
        features = self.described.features(network, recipe).of(self.usable)
        recipe = fit_to_collection(recipe, len(self.images), self.size)
        banks = self._banks(number, network, features.plain)
        # A random FC has nothing to say yet, so the first pool goes without it; else the new bank is the input.
        bare = index == 0 and self.recipe.network.start == "random"
        descriptors = features.plain if bare else banks.plain.features
        by_overlap = recipe.mining.similarity == "overlap"
        seen = None
        if len(features.views):
            voted = by_overlap and votes(recipe.method)
            seen = embed_evidence(network, features.plain, features.views, voted=voted)
        deciding = seen.deciding if seen and by_overlap else descriptors
        assert recipe.pool != "auto"
        pool = round_pool(deciding, recipe.pool, self._scratch(number), self.ranks, self.device)
        size = estimate_size(pool.ids) if by_overlap and not self.size.core else self.size
        calibration = self.ranks.from_first(
            calibrate(recipe, descriptors, seen, pool.ids, size) if self.ranks.first else None
        )
        verdicts = None
        if by_overlap:
            shared = neighbour_overlap(pool.ids, size.core)
            verdicts = judge(pool, shared, calibration.criteria, recipe.neighbours)
        self._note_start(number, descriptors, pool, calibration, verdicts)
        if self.recipe.guard and verdicts is not None and verdicts.per_image() < MIN_POSITIVES:
            self._skip(number, network, verdicts)
            return
        seed = self.recipe.seed * 1009 + number
        mined = verdicts.positive if verdicts is not None and recipe.members == "mined" else None
        sampler = TupleSampler(pool.ids, recipe.tuples, recipe.neighbours, seed, mined)
        pool = map_large_pool(pool, self._scratch(number), self.ranks)
        source: Source
        if recipe.train == "fc":
            # Seconds of work: the first rank does it alone, the others wait for its weights.
            ranks = Ranks()
            source = CachedSource(network, features.plain, features.views, sampler, seed=seed)
        elif recipe.train == "late":
            ranks = Ranks()
            maps = self.described.maps(network, recipe).of(self.usable)
            source = LateSource(network, maps.plain, maps.views, sampler, side=recipe.plain_size, seed=seed)
        else:
            ranks = self.ranks
            source = ImageSource(
                network,
                self.images,
                sampler,
                recipe,
                seed=seed,
                workers=self.workers,
                skipped=self.skipped,
                cache=self.described.decoded(self.images, recipe),
                ranks=ranks,
                announce=lambda ids: announce(ids, pool, banks, calibration.criteria),
            )
        this = Round(
            number=number,
            recipe=recipe,
            network=network,
            source=source,
            pool=pool,
            banks=banks,
            criteria=calibration.criteria,
            folder=self.run.round_folder(number),
            tracker=self.tracker,
            seed=self.recipe.seed,
            checkpoint_every=self.recipe.checkpoint_every,
            keep_checkpoints=self.recipe.keep_checkpoints,
            seconds=self._budget(index),
            verdicts=verdicts,
            instances=self.instances,
            ranks=ranks,
        )
        before = measure(descriptors, seen.view) if self.recipe.guard and seen is not None else None
        kept = copy.deepcopy(network.state_dict())
        began, steps = time.monotonic(), 0
        if self.ranks.first or not ranks.alone:
            self._inspect(this, "start")
            if recipe.refine and isinstance(network.fc, nn.Linear):
                network.fc = RefinedLinear(network.fc)
            steps = train_round(this)
            if isinstance(network.fc, RefinedLinear):
                network.fc = network.fc.folded()
            self.tracker.event(number, "end", step=steps, steps=steps, seconds=time.monotonic() - began)
            self._inspect(this, "end")
        self.ranks.copy_from_first(network)
        if before is not None:
            self._keep_or_step_back(number, network, recipe, before, kept, steps)
        if self.ranks.first:
            self.run.end_round(number, network)
        self._clear(number)

    def _banks(self, number: int, network: DescriptorNetwork, plain: Tensor) -> RoundBanks:
        dtype = torch.float16 if self.recipe.rounds[number - 1].bank_dtype == "fp16" else torch.float32
        banks = open_banks(len(plain), network.dim, dtype, self._scratch(number), self.ranks)
        fill_banks(banks, network, plain, self.ranks)
        return banks

    def _skip(self, number: int, network: DescriptorNetwork, verdicts: Verdicts) -> None:
        """Do not train where too few pairs are safe: the network stays as it is."""
        message = (
            f"Round {number} was left out: only {verdicts.per_image():.2f} safe pairs an image were found, and "
            f"training on fewer than {MIN_POSITIVES:g} does more harm than good. The model keeps its start."
        )
        self.tracker.event(
            number, "guard", step=0, message=message, action="skip", pairs=verdicts.per_image()
        )
        if self.ranks.first:
            self.run.end_round(number, network)
        self._clear(number)

    def _keep_or_step_back(
        self,
        number: int,
        network: DescriptorNetwork,
        recipe: RoundRecipe,
        before: Health,
        kept: dict[str, Tensor],
        steps: int,
    ) -> None:
        """Undo a round that the guard finds worse than what it started from."""
        features = self.described.features(network, recipe).of(self.usable)
        after = measure(embed_all(network, features.plain), embed_all(network, features.views[0]))
        reason = self.ranks.from_first(worse(before, after))
        if reason:
            network.load_state_dict(kept)
        self.tracker.event(
            number,
            "guard",
            step=steps,
            action="step back" if reason else "ok",
            message=f"Round {number} was undone: {reason}." if reason else f"Round {number} was kept.",
            found=after.found,
            alike=after.alike,
            spread=after.spread,
        )

    def _inspect(self, this: Round, moment: str) -> None:
        if not self.ranks.first or (moment == "start" and load_inspection(this.folder, moment) is not None):
            return  # another rank's task, or done before an interruption
        seen = inspect_round(
            this.pool,
            this.banks,
            this.criteria,
            self.images,
            self.instances,
            this.verdicts,
            neighbours=this.recipe.neighbours,
        )
        save_inspection(this.folder, moment, seen)

    def _scratch(self, number: int) -> Path:
        """Files that a round needs only while it lasts."""
        return self.run.round_folder(number) / "scratch"

    def _clear(self, number: int) -> None:
        self.ranks.barrier()
        if self.ranks.first:
            shutil.rmtree(self._scratch(number), ignore_errors=True)

    def _note_start(
        self,
        number: int,
        descriptors: Tensor,
        pool: Pool,
        calibration: Calibration,
        verdicts: Verdicts | None,
    ) -> None:
        point = self.run.resume_point()
        if not self.ranks.first or (point is not None and point >= (number, 0)):
            return  # another rank's task, or written before the interruption
        reasons = [*(self.run.start_reasons() if number == 1 else ()), *calibration.reasons]
        self.tracker.event(
            number,
            "start",
            pool=pool.size,
            reasons=reasons,
            criteria=dataclasses.asdict(calibration.criteria),
            map=self._map(descriptors) if self.labels else None,
            pairs=verdicts.per_image() if verdicts else None,
            pair_precision=self._pair_precision(pool, verdicts) if verdicts else None,
        )

    def _pair_precision(self, pool: Pool, verdicts: Verdicts) -> float | None:
        """How many of a round's positives are right, where labels were given."""
        if self.instances is None or not verdicts.positive.any():
            return None
        first, place = verdicts.positive.nonzero(as_tuple=True)
        right = self.instances[first] == self.instances[pool.ids[first, place].long()]
        return float(right.float().mean())

    def _end(self, network: DescriptorNetwork) -> None:
        number = len(self.recipe.rounds) + 1
        if self.recipe.network.keep_start and isinstance(network.fc, nn.Linear):
            mix_with_start(network.fc, self.run.start_fc(), self.recipe.network.keep_start)
        features = (
            self.described.features(network, self.recipe.rounds[-1]).of(self.usable) if self.labels else None
        )
        for skipped in self.ranks.collect(list(self.skipped)):
            for path, reason in skipped:
                self.skipped.add(path, reason)
        if self.ranks.first:
            if features is not None:
                self.tracker.event(number, "finish", map=self._map(embed_all(network, features.plain)))
            save_model(self.run.path / MODEL_NAME, network, self.recipe, {"images": str(len(self.images))})
        self.ranks.barrier()

    def _map(self, descriptors: Tensor) -> float:
        assert self.instances is not None
        known = (self.instances >= 0).nonzero()[:, 0].tolist()
        paths = tuple(self.images.paths[i] for i in known)
        names = tuple(str(int(self.instances[i])) for i in known)
        return evaluate_labels(descriptors[known].float(), Labels(self.images.root, paths, names)).map

    def _budget(self, index: int) -> float:
        """Seconds this round may take: an even share, among the rounds left, of the run's minutes."""
        if not self.recipe.minutes or self.recipe.rounds[index].train == "fc":
            return 0.0
        rounds = sum(each.train != "fc" for each in self.recipe.rounds)
        return 60 * self.recipe.minutes / rounds


def _require_images(images: ImageList, ranks: Ranks) -> None:
    """Refuse to train where this rank does not see the files that the first one lists."""
    step = max(1, len(images) // _SEEN_IMAGES)
    if ranks.first or any(images.file(i).exists() for i in range(0, len(images), step)):
        return
    raise UserError(
        f"This rank sees none of the images in {images.root}: mount them under the same path on every node."
    )
