"""Plan a run: the recipe, images and labels that were asked for, rounds fitted to the collection, time limits."""

import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from insclr.data.images import ImageList, list_images
from insclr.data.labels import Labels, match_instances, read_labels
from insclr.errors import UserError
from insclr.options import TrainOptions
from insclr.progress import in_words
from insclr.recipe import Recipe, RoundRecipe, load_recipe
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
            "local": kept("local") or asked.local,
            "engine": asked.engine if asked.engine != "auto" else kept("engine") or "auto",
        }
    )


def choose_recipe(
    out: Path, recipe: str | Path | Recipe | None, changes: tuple[str, ...], resume: bool
) -> Recipe:
    """The recipe that was asked for; a resumed run has its own."""
    kept = kept_recipe(out) if resume else None
    if not recipe and kept:
        return load_recipe(kept, changes, stored=True)
    chosen = load_recipe(recipe or "default", changes)
    if kept and chosen.large_size:  # the size was chosen when the run began
        return chosen.at_size(load_recipe(kept, stored=True).descriptor.size)
    return chosen


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


_LAYERS = {"all": "all layers", "late": "the late layers", "fc": "the last layer"}
_FC_STEP = 0.02  # seconds, until a round has been measured
# A training step costs so many times what describing its images does: all layers forward and back, or the late ones.
_TIMES = {"all": 3.0, "late": 1.0}


def fit_to_collection(recipe: RoundRecipe, images: int) -> RoundRecipe:
    """Shrink the tuples and the steps where the collection is too small for them."""
    most = max(min(8, images), images // 8)
    if recipe.tuples > most:
        recipe = recipe.with_(tuples=most)
    if recipe.epochs:
        steps = max(1, math.ceil(recipe.epochs * images / recipe.tuples))
        recipe = recipe.with_(steps=min(recipe.steps, steps))
    return recipe


def seconds_for_round(recipe: Recipe, index: int, records: Iterable[Mapping[str, Any]]) -> float:
    """Seconds that round `index` may take: an even share, among the rounds left, of what is left of the minutes.

    0 = no limit. `records` are the run's log, with the seconds of the rounds before.
    """
    timed = [i for i, each in enumerate(recipe.rounds) if each.train != "fc"]
    if not recipe.minutes or index not in timed:
        return 0.0
    before = {i + 1 for i in timed if i < index}
    ends = (one for one in records if one.get("event") == "end" and one["round"] in before)
    left = 60 * recipe.minutes - sum(float(one.get("seconds") or 0) for one in ends)
    return max(1.0, left / sum(i >= index for i in timed))


class Plan:
    """The stages of a run: describe the images, the rounds, the report."""

    def __init__(self, recipe: Recipe, images: int, done: int = 0, size: str = "") -> None:
        """`done` rounds of an interrupted run have ended; `size` is why its views have their size."""
        self._recipe = recipe
        self._size = size
        self._images = images
        self._done = done
        self._rounds = [fit_to_collection(each, images) for each in recipe.rounds]
        self._at = done - 1  # the round under way; before the first one, images are described
        self._prepares = False  # its steps have not begun
        self._began = 0.0
        self._seconds_per_view: float | None = None
        self._pace: dict[str, float] = {}  # seconds a step, by the layers that are trained
        self._spent = 0.0  # seconds in rounds that have a time limit

    def line(self) -> str:
        """All stages, for people."""
        parts = [] if self._done else [f"describe {self._images} photos"]
        counts = Counter(each.train for each in self._rounds[self._done :])
        limited = [layers for layers in counts if layers != "fc"]
        for layers, count in counts.items():
            rounds = f"{count} round{'s' if count > 1 else ''} of {_LAYERS[layers]}"
            if self._recipe.minutes and layers in limited[-1:]:  # the limit is one for all of them
                together = "together " if len(limited) > 1 else ""
                rounds += f" ({together}{in_words(60 * self._recipe.minutes)} at most)"
            parts.append(rounds)
        done = f"{self._done} of {len(self._rounds)} rounds are done; " if self._done else ""
        size = f"{self._size}; " if self._size and not self._done else ""
        return f"plan: {size}{done}{', '.join([*parts, 'the report'])}"

    def note_describing(self, views: int, seconds: float) -> None:
        """Describing so many views took so many seconds."""
        if views:
            self._seconds_per_view = seconds / views

    def begin_round(self, index: int) -> None:
        """Round `index` is under way."""
        self._at, self._began, self._prepares = index, time.monotonic(), True

    def begin_steps(self) -> None:
        """The steps of the round begin, and have a bar of their own."""
        self._prepares = False

    def end_round(self, steps: int) -> None:
        """The round has ended after so many steps."""
        self._prepares = False
        seconds = time.monotonic() - self._began
        layers = self._rounds[self._at].train
        if steps:
            self._pace[layers] = seconds / steps
        if layers != "fc":
            self._spent += seconds

    def seconds_after(self) -> float | None:
        """What the rounds may take whose steps have not begun; None while that is unknown."""
        later = self._rounds[self._at + (0 if self._prepares else 1) :]
        of_fc = sum(each.steps * self._pace.get("fc", _FC_STEP) for each in later if each.train == "fc")
        estimates = [self._estimate(each) for each in later if each.train != "fc"]
        known = [one for one in estimates if one is not None]
        bounds = [sum(known)] if len(known) == len(estimates) else []
        if self._recipe.minutes:
            bounds.append(max(0.0, 60 * self._recipe.minutes - self._spent))
        return of_fc + min(bounds) if bounds else None

    def _estimate(self, each: RoundRecipe) -> float | None:
        if each.train in self._pace:
            return each.steps * self._pace[each.train]
        if self._seconds_per_view is None:
            return None
        images = each.tuples * (1 + int(getattr(each.method, "neighbours", 0)))
        again = self._images if each.train == "all" else 0  # the network has changed: the pool is made anew
        return self._seconds_per_view * (_TIMES[each.train] * each.steps * images + again)
