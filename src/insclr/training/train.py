"""A whole run: images and a recipe in, a run folder with a trained model out. Every stage can be resumed."""

import dataclasses
import logging
import shutil
import time
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import Tensor

from insclr.data.cache import DecodedCache, build_cache
from insclr.data.images import ImageList, list_images, require_usable
from insclr.data.skipped import Skipped
from insclr.data.tuples import TupleSampler
from insclr.errors import UserError
from insclr.evaluation.evaluate import evaluate_labels
from insclr.evaluation.labels import Labels, read_labels
from insclr.mining.calibrate import calibrate
from insclr.mining.pool import Pool
from insclr.model.model_file import MODEL_NAME, Model, load_model, save_model
from insclr.model.network import DescriptorNetwork, create_network
from insclr.model.whitening import fold_into_fc, pca_whitening
from insclr.recipe import Recipe, RoundRecipe, load_recipe
from insclr.retrieval.extract import default_workers
from insclr.training.banks import RoundBanks, embed_all, fill_banks, open_banks
from insclr.training.distributed import Ranks, joined
from insclr.training.features import PooledFeatures, pooled_features
from insclr.training.instances import match_instances
from insclr.training.pools import map_large_pool, round_pool
from insclr.training.rounds import Round, train_round
from insclr.training.run_folder import RunFolder
from insclr.training.sources import CachedSource, ImageSource, Source, view_spec
from insclr.training.tracking import SilentTracker, Tracker

logger = logging.getLogger(__name__)

_DECODED_BYTES = 4 << 30  # of decoded photos kept on disk while a run trains on images
_PCA_IMAGES = 100_000  # as many tell the principal directions of any collection


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
        self.cache = cache or run.path / "cache"
        self.skipped = Skipped()
        workers = max(1, default_workers() // ranks.local_world)
        self.workers = workers if recipe.workers < 0 else recipe.workers
        with ranks.in_turn():
            self.listed = run.images(images)
        ranks.require_images(self.listed)
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
            features = self._features(network, recipe.rounds[min(done, len(recipe.rounds) - 1)])
            with ranks.in_turn():
                self.usable = run.usable(features.seen)
            require_usable(len(self.usable), self.listed.root)
            self.images = self.listed.subset(self.usable.tolist())
            self.instances = match_instances(self.labels, self.images) if self.labels else None
            if not done and recipe.network.start == "pca" and network.fc is not None:
                plain = features.of(self.usable).plain
                sample = plain[:: 1 + len(plain) // _PCA_IMAGES].float()
                fold_into_fc(network.fc, pca_whitening(sample, network.dim, recipe.network.start_power))
            ranks.copy_from_first(network)
            for index in range(done, len(recipe.rounds)):
                self._round(index, network)
            self._end(network)
        finally:
            self.tracker.close()
            if ranks.first:
                self.skipped.write(run.path / "skipped.csv")

    def _round(self, index: int, network: DescriptorNetwork) -> None:
        recipe, number = self.recipe.rounds[index], index + 1
        features = self._features(network, recipe).of(self.usable)
        recipe = fit_to_collection(recipe, len(self.images))
        banks = self._banks(number, network, features.plain)
        # A random FC has nothing to say yet, so the first pool goes without it; else the new bank is the input.
        bare = index == 0 and self.recipe.network.start == "random"
        descriptors = features.plain if bare else banks.plain.features
        calibration = self.ranks.from_first(calibrate(recipe, descriptors) if self.ranks.first else None)
        assert recipe.pool != "auto"
        pool = round_pool(descriptors, recipe.pool, self._scratch(number), self.ranks, self.device)
        self._note_start(number, descriptors, pool, calibration.reasons, calibration.criteria.__dict__)
        seed = self.recipe.seed * 1009 + number
        sampler = TupleSampler(pool.ids, recipe.tuples, recipe.neighbours, seed)
        pool = map_large_pool(pool, self._scratch(number), self.ranks)
        source: Source
        if recipe.train == "fc":
            # Seconds of work: the first rank does it alone, the others wait for its weights.
            ranks = Ranks()
            source = CachedSource(network, features.plain, features.views, sampler, seed=seed)
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
                cache=self._decoded(recipe),
                ranks=ranks,
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
            instances=self.instances,
            ranks=ranks,
        )
        began = time.monotonic()
        if self.ranks.first or not ranks.alone:
            steps = train_round(this)
            self.tracker.event(number, "end", step=steps, steps=steps, seconds=time.monotonic() - began)
        self.ranks.copy_from_first(network)
        if self.ranks.first:
            self.run.end_round(number, network)
        self._clear(number)

    def _banks(self, number: int, network: DescriptorNetwork, plain: Tensor) -> RoundBanks:
        dtype = torch.float16 if self.recipe.rounds[number - 1].bank_dtype == "fp16" else torch.float32
        banks = open_banks(len(plain), network.dim, dtype, self._scratch(number), self.ranks)
        fill_banks(banks, network, plain, self.ranks)
        return banks

    def _scratch(self, number: int) -> Path:
        """Files that a round needs only while it lasts."""
        return self.run.round_folder(number) / "scratch"

    def _clear(self, number: int) -> None:
        self.ranks.barrier()
        if self.ranks.first:
            shutil.rmtree(self._scratch(number), ignore_errors=True)

    def _features(self, network: DescriptorNetwork, recipe: RoundRecipe) -> PooledFeatures:
        return pooled_features(
            network,
            self.listed,
            self.cache,
            plain_size=recipe.plain_size,
            augmented_size=recipe.augmented_size,
            views=recipe.cached_views if recipe.train == "fc" else 0,
            seed=0,
            workers=self.workers,
            skipped=self.skipped,
            ranks=self.ranks,
        )

    def _decoded(self, recipe: RoundRecipe) -> DecodedCache | None:
        """Photos decoded once for all epochs: building it costs about one epoch, so it must serve several."""
        if recipe.steps * recipe.tuples * (1 + recipe.neighbours) < 2 * len(self.images):
            return None
        with self.ranks.in_turn():
            return build_cache(
                self.images,
                self.cache / "decoded",
                longest=view_spec(recipe).longest,
                max_bytes=_DECODED_BYTES,
                workers=self.workers,
            )

    def _note_start(
        self,
        number: int,
        descriptors: Tensor,
        pool: Pool,
        reasons: tuple[str, ...],
        criteria: dict[str, object],
    ) -> None:
        point = self.run.resume_point()
        if not self.ranks.first or (point is not None and point >= (number, 0)):
            return  # another rank's task, or written before the interruption
        score = self._map(descriptors) if self.labels else None
        self.tracker.event(
            number, "start", pool=pool.size, reasons=list(reasons), criteria=criteria, map=score
        )

    def _end(self, network: DescriptorNetwork) -> None:
        number = len(self.recipe.rounds) + 1
        features = self._features(network, self.recipe.rounds[-1]).of(self.usable) if self.labels else None
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
        if not self.recipe.minutes or self.recipe.rounds[index].train != "all":
            return 0.0
        rounds = sum(each.train == "all" for each in self.recipe.rounds)
        return 60 * self.recipe.minutes / rounds


def fit_to_collection(recipe: RoundRecipe, images: int) -> RoundRecipe:
    """Shrink the pool, the tuples and k where the collection is too small for them, saying so."""
    pool = min(500, max(50, images // 10)) if recipe.pool == "auto" else recipe.pool
    if pool > images - 1:
        pool = images - 1
        logger.warning("the pool shrinks to %d: there are %d images", pool, images)
    if recipe.neighbours >= pool:
        raise UserError(
            f"A tuple of an anchor and {recipe.neighbours} neighbours needs a pool larger than {recipe.neighbours}, "
            f"but {images} images give a pool of {pool}: add images, or --set rounds.neighbours={max(1, pool - 1)}."
        )
    if recipe.tuples > images:
        recipe = dataclasses.replace(recipe, tuples=images)
        logger.warning("a batch has %d tuples: there are no more images", images)
    mining = recipe.mining
    if mining.k != "auto" and mining.k > pool:
        logger.warning("k shrinks to %d, the size of the pool", pool)
        mining = dataclasses.replace(mining, k=pool)
    return dataclasses.replace(recipe, pool=pool, mining=mining)
