"""A whole run: images and a recipe in, a run folder with a trained model out. Every stage can be resumed."""

import dataclasses
import logging
import time
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
from insclr.mining.bank import MemoryBank, MemoryBanks
from insclr.mining.calibrate import calibrate
from insclr.mining.pool import Pool, build_pool
from insclr.model.model_file import MODEL_NAME, Model, load_model, save_model
from insclr.model.network import DescriptorNetwork, create_network
from insclr.model.whitening import fold_into_fc, pca_whitening
from insclr.recipe import Recipe, RoundRecipe, load_recipe
from insclr.retrieval.extract import default_workers
from insclr.training.features import PooledFeatures, pooled_features
from insclr.training.instances import match_instances
from insclr.training.rounds import Round, train_round
from insclr.training.run_folder import RunFolder
from insclr.training.sources import CachedSource, ImageSource, Source, view_spec
from insclr.training.tracking import Tracker

logger = logging.getLogger(__name__)

_DECODED_BYTES = 4 << 30  # of decoded photos kept on disk while a run trains on images


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
    if not isinstance(images, ImageList):
        images = list_images(images)
    run = RunFolder(Path(out), recipe, resume=resume)
    if run.finished:
        return load_model(run.path / MODEL_NAME)
    with run.writing():
        return _Training(run, recipe, images, labels, device, cache).complete()


class _Training:
    """The state that the stages of one run share."""

    def __init__(
        self,
        run: RunFolder,
        recipe: Recipe,
        images: ImageList,
        labels: str | Path | None,
        device: str | None,
        cache: Path | None,
    ) -> None:
        self.run = run
        self.recipe = recipe
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.cache = cache or run.path / "cache"
        self.skipped = Skipped()
        self.workers = default_workers() if recipe.workers < 0 else recipe.workers
        self.listed = run.images(images)
        self.labels = read_labels(labels) if labels else None

    def complete(self) -> Model:
        """Do what is still to be done and write the model."""
        recipe, run = self.recipe, self.run
        torch.manual_seed(recipe.seed)
        network = create_network(recipe.network).to(self.device)
        done = run.finished_rounds()
        self.tracker = Tracker(run.path, after=run.resume_point())
        try:
            if done:
                run.load_round(done, network)
            features = self._features(network, recipe.rounds[min(done, len(recipe.rounds) - 1)])
            self.usable = run.usable(features.seen)
            require_usable(len(self.usable), self.listed.root)
            self.images = self.listed.subset(self.usable.tolist())
            self.instances = match_instances(self.labels, self.images) if self.labels else None
            if not done and recipe.network.start == "pca" and network.fc is not None:
                plain = features.plain[self.usable].float()
                fold_into_fc(network.fc, pca_whitening(plain, network.dim, recipe.network.start_power))
            for index in range(done, len(recipe.rounds)):
                self._round(index, network)
            self._end(network)
        finally:
            self.tracker.close()
            self.skipped.write(run.path / "skipped.csv")
        return load_model(run.path / MODEL_NAME)

    def _round(self, index: int, network: DescriptorNetwork) -> None:
        recipe, number = self.recipe.rounds[index], index + 1
        folder = self.run.round_folder(number)
        features = self._features(network, recipe)
        plain, views = features.plain[self.usable], features.views[:, self.usable]
        descriptors = self._descriptors(network, plain, first=index == 0)
        recipe = fit_to_collection(recipe, len(self.images))
        calibration = calibrate(recipe, descriptors)
        assert recipe.pool != "auto"
        pool = build_pool(descriptors, recipe.pool, device=self.device)
        self._note_start(number, descriptors, pool, calibration.reasons, calibration.criteria.__dict__)
        seed = self.recipe.seed * 1009 + number
        sampler = TupleSampler(pool.ids, recipe.tuples, recipe.neighbours, seed)
        source: Source
        if recipe.train == "fc":
            source = CachedSource(network, plain, views, sampler, seed=seed)
        else:
            source = ImageSource(
                network,
                self.images,
                sampler,
                recipe,
                seed=seed,
                workers=self.workers,
                skipped=self.skipped,
                cache=self._decoded(recipe),
            )
        this = Round(
            number=number,
            recipe=recipe,
            network=network,
            source=source,
            pool=pool,
            banks=_banks(network, plain, recipe),
            criteria=calibration.criteria,
            folder=folder,
            tracker=self.tracker,
            seed=self.recipe.seed,
            checkpoint_every=self.recipe.checkpoint_every,
            keep_checkpoints=self.recipe.keep_checkpoints,
            seconds=self._budget(index),
            instances=self.instances,
        )
        began = time.monotonic()
        steps = train_round(this)
        self.tracker.event(number, "end", step=steps, steps=steps, seconds=time.monotonic() - began)
        self.run.end_round(number, network)

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
        )

    def _decoded(self, recipe: RoundRecipe) -> DecodedCache | None:
        """Photos decoded once for all epochs: building it costs about one epoch, so it must serve several."""
        if recipe.steps * recipe.tuples * (1 + recipe.neighbours) < 2 * len(self.images):
            return None
        return build_cache(
            self.images,
            self.cache / "decoded",
            longest=view_spec(recipe).longest,
            max_bytes=_DECODED_BYTES,
            workers=self.workers,
        )

    def _descriptors(self, network: DescriptorNetwork, plain: Tensor, *, first: bool) -> Tensor:
        """What the pool is built from: a random FC has nothing to say yet, so round 1 goes without it."""
        if first and self.recipe.network.start == "random":
            return plain.float()
        return embed_all(network, plain)

    def _note_start(
        self,
        number: int,
        descriptors: Tensor,
        pool: Pool,
        reasons: tuple[str, ...],
        criteria: dict[str, object],
    ) -> None:
        point = self.run.resume_point()
        if point is not None and point >= (number, 0):
            return  # written before the interruption
        score = self._map(descriptors) if self.labels else None
        self.tracker.event(
            number, "start", pool=pool.size, reasons=list(reasons), criteria=criteria, map=score
        )

    def _end(self, network: DescriptorNetwork) -> None:
        number = len(self.recipe.rounds) + 1
        if self.labels:
            plain = self._features(network, self.recipe.rounds[-1]).plain[self.usable]
            self.tracker.event(number, "finish", map=self._map(embed_all(network, plain)))
        save_model(self.run.path / MODEL_NAME, network, self.recipe, {"images": str(len(self.images))})

    def _map(self, descriptors: Tensor) -> float:
        assert self.instances is not None
        known = (self.instances >= 0).nonzero()[:, 0].tolist()
        paths = tuple(self.images.paths[i] for i in known)
        names = tuple(str(int(self.instances[i])) for i in known)
        return evaluate_labels(descriptors[known], Labels(self.images.root, paths, names)).map

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


@torch.no_grad()
def embed_all(network: DescriptorNetwork, pooled: Tensor) -> Tensor:
    """Descriptors (N, D) of pooled features (N, C), in blocks, on the CPU."""
    device = next(network.parameters()).device
    return torch.cat([network.embed(block.float().to(device)).cpu() for block in pooled.split(8192)])


def _banks(network: DescriptorNetwork, plain: Tensor, recipe: RoundRecipe) -> MemoryBanks:
    """Both banks, first filled from the pooled features that the pool already needed."""
    dtype = torch.float16 if recipe.bank_dtype == "fp16" else torch.float32
    banks = MemoryBanks(*(MemoryBank(len(plain), network.dim, dtype) for _ in range(2)))
    for start in range(0, len(plain), 8192):
        block = embed_all(network, plain[start : start + 8192])
        banks.plain.fill(block, 0, first=start)
        banks.augmented.fill(block, 0, first=start)
    return banks
