"""What a run is going to do, in one line, and how long the rest of it may take."""

import time
from collections import Counter

from insclr.progress import in_words
from insclr.recipe import Recipe, RoundRecipe
from insclr.training.fit import fit_to_collection

_LAYERS = {"all": "all layers", "late": "the late layers", "fc": "the last layer"}
_FC_STEP = 0.02  # seconds, until a round has been measured
# A training step costs so many times what describing its images does: all layers forward and back, or the late ones.
_TIMES = {"all": 3.0, "late": 1.0}


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
        self._describing: float | None = None  # seconds a view
        self._pace: dict[str, float] = {}  # seconds a step, by what is trained
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

    def described(self, views: int, seconds: float) -> None:
        """Describing so many views took so many seconds."""
        if views:
            self._describing = seconds / views

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
        """What the rounds after the one under way may take; None while nobody can tell."""
        later = self._rounds[self._at + 1 :]
        quick = [self._estimate(each) for each in later if each.train == "fc"]
        slow = [self._estimate(each) for each in later if each.train != "fc"]
        limit = max(0.0, 60 * self._recipe.minutes - self._spent) if self._recipe.minutes else None
        known = [one for one in (*quick, *slow) if one is not None]
        if len(known) == len(quick) + len(slow):
            total = sum(one for one in slow if one is not None)
            return sum(one for one in quick if one is not None) + (
                total if limit is None else min(total, limit)
            )
        return None if limit is None else sum(one for one in quick if one is not None) + limit

    def _estimate(self, each: RoundRecipe) -> float | None:
        if each.train in self._pace:
            return each.steps * self._pace[each.train]
        if each.train == "fc":
            return each.steps * _FC_STEP
        if self._describing is None:
            return None
        images = each.tuples * (1 + int(getattr(each.method, "neighbours", 0)))
        again = self._images if each.train == "all" else 0  # the network has changed: the pool is made anew
        return self._describing * (_TIMES[each.train] * each.steps * images + again)
