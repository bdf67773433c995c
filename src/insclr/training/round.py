"""A round of training, top to bottom: mine, test the pairs, train step by step, keep the result or undo it."""

import copy
import logging
from dataclasses import replace

from torch import Tensor, nn

from insclr.methods import create_method
from insclr.methods.method import Method, Prepared, RoundStart
from insclr.mining.candidates import PairTrust
from insclr.mining.own_views import ACTIVE_NEGATIVES, exceeded_by, random_pairs
from insclr.model.network import LateLayers, RefinedLinear
from insclr.progress import working
from insclr.ranks import Ranks
from insclr.recipe import RoundRecipe
from insclr.tracking import read_metrics
from insclr.training.guard import has_inconsistent_pairs, measure_health, why_unsafe, why_worse
from insclr.training.initial_fc import initialise_fc, renew_initial_fc
from insclr.training.plan import fit_to_collection, seconds_for_round
from insclr.training.run_log import log_guard, log_round_start, log_skipped, save_inspection
from insclr.training.sources import ImageSource, Maps, MapSource, PooledSource, Source
from insclr.training.state import Run
from insclr.training.steps import Round, train_steps

logger = logging.getLogger(__name__)


def run_round(run: Run, index: int) -> None:
    """Train round `index`, from 0; the network is left as it was where the guard is against it."""
    number, recipe = index + 1, fit_to_collection(run.recipe.rounds[index], len(run.images))
    method, network, ranks = create_method(recipe.method), run.network, run.ranks
    if method.needs.labels:
        logger.warning(
            "round %d LEARNS FROM THE LABELS (%s): no unsupervised result", number, recipe.method.name
        )
    run.plan.begin_round(index)
    if run.feedback is None and run.pair_trust() is PairTrust.UNTRUSTED:
        log_skipped(run, number, "the mined pairs are untrusted")
        return

    with working(f"round {number}: looking for photos of the same thing"):
        new_fc = renew_initial_fc(run, index) or number == 1
        start, prepared = prepare_method(run, number, recipe, method)
        if run.feedback is not None and has_inconsistent_pairs(prepared):
            distrust_pairs(run, start)
            start, prepared = prepare_method(run, number, recipe, method)
        log_round_start(run, number, start, prepared, new_fc=new_fc)
    if reason := why_unsafe(prepared, start.trust) if run.recipe.guard else "":
        log_skipped(run, number, reason, prepared.positives_per_image)
        if has_inconsistent_pairs(prepared):
            distrust_pairs(run, start)
        return

    with working(f"round {number}: measuring before training"):
        save_inspection(run, number, "start", method, prepared)
        before = measure_health(start) if run.recipe.guard else None
        weights_before = copy.deepcopy(network.state_dict())
        # The last layer on cached features is seconds of work, and a small collection may have too few tuples for
        # all ranks: then the first rank trains alone, and the others wait for its weights.
        is_shared = recipe.train == "all" or (recipe.train == "late" and recipe.tuples >= ranks.world)
        sharing = ranks if is_shared else Ranks()
        this = Round(
            number=number,
            recipe=recipe,
            network=network,
            method=method,
            source=choose_source(run, number, recipe, method, sharing),
            margin=float(prepared.criteria.get("margin", 0.0)),
            folder=run.folder.round_folder(number),
            tracker=run.tracker,
            seed=run.recipe.seed,
            checkpoint_every=run.recipe.checkpoint_every,
            keep_checkpoints=run.recipe.keep_checkpoints,
            seconds=ranks.from_first(seconds_for_round(run.recipe, index, read_metrics(run.folder.path))),
            instances=run.instances,
            ranks=sharing,
            clock=run.clock,
        )

    steps = 0
    if ranks.first or is_shared:
        if recipe.refine and isinstance(network.fc, nn.Linear):
            network.fc = RefinedLinear(network.fc)
        run.plan.begin_steps()
        steps, seconds = train_steps(this)
        if isinstance(network.fc, RefinedLinear):
            network.fc = network.fc.fold()
        views = steps * method.sampler.step(0).numel() * method.needs.augmented
        run.tracker.event(number, "end", step=steps, steps=steps, seconds=seconds, images=views)
    ranks.copy_from_first(network)
    run.plan.end_round(steps)

    with working(f"round {number}: measuring after training"):
        if before is not None:
            after = measure_health(run.start_round(number, recipe, method.needs))
            assert after is not None
            reason = ranks.from_first(why_worse(before, after))
            if reason:
                network.load_state_dict(weights_before)
            log_guard(run, number, steps, after, reason)
        if number == len(run.recipe.rounds) and method.needs.plain:
            # Its banks are newest now; a method that decides once a round is inspected when the run ends.
            save_inspection(run, number, "end", method, prepared)


def choose_source(run: Run, number: int, recipe: RoundRecipe, method: Method, ranks: Ranks) -> Source:
    """Images through all layers, cached maps through the late ones, or cached pooled features through the FC."""
    network, features, needs, seed = run.network, run.features, method.needs, run.seed(number)
    if recipe.train == "all":
        collection = replace(features.collection, images=run.images)
        return ImageSource(network, method, collection, recipe, seed=seed, ranks=ranks)
    scales = [features.at_scale(network, recipe, scale).plain for scale in needs.scales]
    if recipe.train == "fc":
        pooled = features.pool_features(network, recipe, needs)
        return PooledSource(network, method, pooled.plain, pooled.views, tuple(scales), seed=seed)

    def with_layers(maps: Tensor, side: int) -> Maps:
        return Maps(LateLayers(network, side, features.floats(network, recipe)), maps)

    maps, size = features.maps(network, recipe), recipe.plain_size
    views = with_layers(maps.views, recipe.augmented_size)
    at_scales = [with_layers(one, round(s * size)) for one, s in zip(scales, needs.scales, strict=True)]
    return MapSource(method, with_layers(maps.plain, size), views, at_scales, seed=seed, ranks=ranks)


def prepare_method(run: Run, number: int, recipe: RoundRecipe, method: Method) -> tuple[RoundStart, Prepared]:
    """Prepare the method; measure the margin of the loss where the recipe leaves it to the collection."""
    start = run.start_round(number, recipe, method.needs)
    if number == 1 and run.recipe.network.initial_fc == "random" and run.network.fc is not None:
        start = replace(start, untrained_fc=True)
    prepared = method.prepare(start)
    margin, reasons = recipe.loss.margin, prepared.reasons
    if recipe.method.own_loss or recipe.loss.form == "softmax":
        return start, prepared
    if margin == "auto":
        pairs = random_pairs(start.descriptors)
        margin = float(run.ranks.from_first(exceeded_by(pairs, ACTIVE_NEGATIVES)))
        why = f"{ACTIVE_NEGATIVES:.0%} of random pairs are more similar"
        reasons = (*reasons, f"margin = {margin:.3g}: {why}")
    return start, replace(prepared, criteria={**prepared.criteria, "margin": margin}, reasons=reasons)


def distrust_pairs(run: Run, start: RoundStart) -> None:
    """Record that mined pairs are untrusted, and initialise the FC without them."""
    if run.ranks.first:
        run.folder.save_pair_trust(PairTrust.UNTRUSTED)
    initialise_fc(run, start.plain, start.views, size=start.size)
