"""Plan a run: rounds fitted to the collection, their time limits, and the remaining time."""

import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from insclr.progress import in_words
from insclr.recipe import Recipe, RoundRecipe

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

    def __init__(self, recipe: Recipe, images: int, done: int = 0) -> None:
        """`done` rounds of an interrupted run have ended."""
        self._recipe = recipe
        self._images = images
        self._done = done
        self._rounds = [fit_to_collection(each, images) for each in recipe.rounds]
        self._at = done - 1  # the round under way; before the first one, images are described
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
        return f"plan: {done}{', '.join([*parts, 'the report'])}"

    def note_describing(self, views: int, seconds: float) -> None:
        """Describing so many views took so many seconds."""
        if views:
            self._seconds_per_view = seconds / views

    def begin_round(self, index: int) -> None:
        """Round `index` is under way."""
        self._at, self._began = index, time.monotonic()

    def end_round(self, steps: int) -> None:
        """The round has ended after so many steps."""
        seconds = time.monotonic() - self._began
        layers = self._rounds[self._at].train
        if steps:
            self._pace[layers] = seconds / steps
        if layers != "fc":
            self._spent += seconds

    def seconds_after(self) -> float | None:
        """What the rounds after the one under way may take; None while that is unknown."""
        later = self._rounds[self._at + 1 :]
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
