"""Read a run folder for its report, also when the run is unfinished, resumed or of another version."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from insclr.run_folder import RunReader

Record = dict[str, Any]
_POINTS = 240  # most points a curve keeps: more cannot be told apart in a chart


@dataclass(frozen=True)
class RoundRecord:
    """What one round logged."""

    number: int  # from 1
    offset: int = 0  # steps that the rounds before it took
    steps: list[Record] = field(default_factory=list)  # ascending
    events: list[Record] = field(default_factory=list)
    recipe: Record = field(default_factory=dict)

    @property
    def done(self) -> int:
        """Steps it took, as far as is known."""
        last = int(self.steps[-1]["step"]) if self.steps else 0
        return max([last, *(int(event["step"]) for event in self.events)])

    @property
    def seconds(self) -> float:
        """How long it trained; 0 where it did not end."""
        return sum(float(event.get("seconds") or 0) for event in self.events if event["event"] == "end")

    def event(self, name: str) -> Record:
        """The last event of this name, or an empty record."""
        return next((event for event in reversed(self.events) if event["event"] == name), {})


class RunRecord:
    """The content of a run folder, finished or not."""

    def __init__(self, path: Path) -> None:
        run = RunReader(path)
        records, images = run.metrics(), run.images()
        self.name = path.name
        self.report_file = run.report_file
        self.recipe = run.recipe()
        self.recipe_text = run.recipe_text
        self.size = run.option("size") or ""  # the side of views, and why
        self.root = images.root
        self.images = len(images)  # all that were found
        self.rounds = _rounds(self.recipe, records)
        self.events = [record for record in records if "event" in record]
        self.skipped = list(run.read_skipped().items())  # (path, reason)
        # (moment, what was decided): the start, then after each round
        self.inspections = _inspections(run, self.rounds)
        self.finished = run.finished or any(event["event"] == "finish" for event in self.events)
        self.measured = run.read_measured()  # of the finished model, by `note_measured`

    @property
    def steps(self) -> int:
        """Steps of all rounds."""
        return sum(one.done for one in self.rounds)

    @property
    def usable(self) -> int:
        """Images that could be read."""
        return self.images - len(self.skipped)

    @property
    def labelled(self) -> bool:
        """Whether labels were given to measure with."""
        return bool(self.maps()) or any("nn_precision" in step for one in self.rounds for step in one.steps)

    @property
    def learned_from_labels(self) -> bool:
        """Whether a round was trained with the labels."""
        return any(event.get("labels_used") for event in self.events)

    def maps(self) -> list[tuple[int, float]]:
        """(steps done, mAP) in the order of measuring."""
        offsets = {one.number: one.offset for one in self.rounds}
        return [
            (offsets.get(event["round"], self.steps) + max(0, event["step"]), float(event["map"]))
            for event in self.events
            if isinstance(event.get("map"), int | float)
        ]

    def curve(self, name: str) -> list[tuple[float, float]]:
        """(steps done, value) along all rounds; neighbouring points are averaged where there are too many."""
        points: list[tuple[float, float]] = []
        limit = max(20, _POINTS // max(1, len(self.rounds)))
        for one in self.rounds:
            own = [
                (one.offset + step["step"], step[name]) for step in one.steps if _is_number(step.get(name))
            ]
            points += _thin(own, limit)
        return points

    def step_names(self) -> dict[float, str]:
        """What to call a place on the common axis of all rounds."""
        return {
            float(one.offset + step["step"]): f"round {one.number}, step {step['step']}"
            for one in self.rounds
            for step in one.steps
        }


def _rounds(recipe: Record, records: list[Record]) -> list[RoundRecord]:
    recipes = recipe.get("rounds", [])
    # The event that ends a run may carry the number after the last round: it is no round of its own.
    numbers = {record["round"] for record in records if record.get("event") != "finish"}
    rounds, offset = [], 0
    for number in sorted(number for number in numbers if number >= 1):
        own = [record for record in records if record["round"] == number]
        # A step that was done twice, before and after an interruption, counts as it was done last.
        steps = {record["step"]: record for record in own if "event" not in record}
        one = RoundRecord(
            number=number,
            offset=offset,
            steps=[steps[step] for step in sorted(steps)],
            events=[record for record in own if "event" in record],
            recipe=recipes[number - 1] if number <= len(recipes) else {},
        )
        rounds.append(one)
        offset += one.done
    return rounds


def _inspections(run: RunReader, rounds: list[RoundRecord]) -> list[tuple[str, Record]]:
    moments = [("Start", run.inspection(rounds[0].number, "start"))] if rounds else []
    moments += [(f"After round {one.number}", run.inspection(one.number, "end")) for one in rounds]
    return [(name, inspection) for name, inspection in moments if inspection is not None]


def _thin(points: list[tuple[float, float]], limit: int) -> list[tuple[float, float]]:
    size = -(-len(points) // limit)
    if size <= 1:
        return points
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    return [(group[-1][0], sum(y for _, y in group) / len(group)) for group in groups]


def _is_number(value: object) -> bool:
    # A NaN is written as a number too, but has no place in a chart.
    return isinstance(value, int | float) and value == value and abs(value) != float("inf")
