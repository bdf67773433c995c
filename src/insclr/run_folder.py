"""The run folder: the only state a training leaves. `RunFolder` writes and resumes it, `RunReader` only reads it."""

import json
import shutil
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import safetensors
import safetensors.torch
from torch import Tensor, nn

from insclr.checkpoint import latest_step
from insclr.data.images import ImageList, Skipped
from insclr.data.tuples import FeedbackGroups
from insclr.errors import UserError
from insclr.files import only_writer, read_json, remove_leftovers, whole_file
from insclr.mining.candidates import PairTrust
from insclr.mining.overlap import UNKNOWN, InstanceSize
from insclr.model.model_file import MODEL_NAME
from insclr.model.network import DescriptorNetwork
from insclr.recipe import Recipe, load_recipe, rename_old_keys, to_toml
from insclr.tracking import read_metrics

Moment = Literal["start", "end"]
_RECIPE = "recipe.toml"
_OPTIONS = "options.json"
_IMAGES = "images.json"
_CACHE = "cache"
_LOCK = ".lock"
_USABLE = "usable.safetensors"
_FEEDBACK = "feedback.safetensors"
_OLD_FEEDBACK, _OLD_ANSWERS = "taught.safetensors", "answers.json"  # of earlier versions
_END = "end.safetensors"
_START = "start.json"
_INITIAL_FC = "start.safetensors"
_PAIR_TRUST = "pair_trust.json"
_SKIPPED = "skipped.csv"
_REPORT = "report.html"
_MEASURED = "measured.json"
LOCK_WAIT = 10.0  # seconds: the workers of a killed run hold its lock until they notice


class _Folder:
    """What writing and reading a run folder have in common."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def finished(self) -> bool:
        """Whether the model is there."""
        return (self.path / MODEL_NAME).exists()

    @property
    def skipped_file(self) -> Path:
        """The table of images that were left out."""
        return self.path / _SKIPPED

    @property
    def cache(self) -> Path:
        """Where features are kept unless the user names another place."""
        return self.path / _CACHE

    @property
    def started(self) -> bool:
        """Whether there is something to go on from: the model, the end of a round or a checkpoint."""
        first = self.round_folder(1)
        return self.finished or (first / _END).exists() or latest_step(first) is not None

    def option(self, name: str) -> str | None:
        """What was given under this name when the run began; paths are absolute."""
        kept = _read_json(self.path / _OPTIONS).get(name)
        return str(kept) if kept else None

    def finished_rounds(self) -> int:
        """How many rounds have ended."""
        number = 0
        while (self.round_folder(number + 1) / _END).exists():
            number += 1
        return number

    def round_folder(self, number: int) -> Path:
        """Where round `number`, from 1, keeps its checkpoints, inspections and end."""
        return self.path / f"round-{number}"

    def inspection(self, round_number: int, moment: Moment) -> dict[str, Any] | None:
        """The inspection at the start or the end of a round; None where there is none.

        A round ends with the network that the next one starts with, so one inspection may serve both. Where the next
        one first makes the initial FC anew, it is of what the other layers have learned.
        """
        file = self._inspection_file(round_number, moment)
        if moment == "end" and not file.exists():
            file = self._inspection_file(round_number + 1, "start")
        return read_json(file, dict) if file.exists() else None

    def pair_trust(self) -> PairTrust:
        """Whether mined pairs may be learned from: untested until a round was kept, unless they are untrusted."""
        trust = _read_json(self.path / _PAIR_TRUST).get("trust")
        # Earlier versions wrote whether the initial FC used mined pairs.
        was_untrusted = trust is None and _read_json(self.path / _START).get("mined") is False
        if trust == PairTrust.UNTRUSTED or was_untrusted:
            return PairTrust.UNTRUSTED
        return PairTrust.TRUSTED if self.kept_rounds() else PairTrust.UNTESTED

    def kept_rounds(self) -> set[int]:
        """The rounds, from 1, that were trained and not undone."""
        records = read_metrics(self.path)
        trained = {one["round"] for one in records if one.get("event") == "end" and one["steps"]}
        return trained - {one["round"] for one in records if one.get("action") == "step back"}

    def _inspection_file(self, round_number: int, moment: Moment) -> Path:
        return self.round_folder(round_number) / f"inspection-{moment}.json"


class RunFolder(_Folder):
    """recipe.toml, options.json, images.json, round-N/ with checkpoints and end, metrics.jsonl, model and report."""

    def __init__(
        self,
        path: Path,
        recipe: Recipe,
        *,
        resume: bool,
        first: bool = True,
        options: Mapping[str, str] = {},
    ) -> None:
        """Open or make the folder; of several ranks only the `first` makes it, the others must find it.

        A run that failed before its first checkpoint does not stand in the way of a new one, which takes over its
        features. `options` are what a resumed run needs again; see `option`.
        """
        super().__init__(path)
        if first and not resume and (path / _RECIPE).exists() and not self.started:
            self._clear()
        self.resumed = (path / _RECIPE).exists()
        if not first and not self.resumed:
            raise UserError(
                f"This rank does not see the run folder {path}: put it on a disk that all nodes share."
            )
        if self.resumed and first and not resume:
            raise UserError(
                f"{path} already holds a run: pass --resume to go on with it, choose another --out, "
                "or remove that folder."
            )
        if self.resumed:
            self._same_recipe(recipe)
        elif path.exists() and (not path.is_dir() or any(not _is_leftover(one) for one in path.iterdir())):
            raise UserError(f"{path} exists and is not a run folder: choose another --out.")
        path.mkdir(parents=True, exist_ok=True)
        if not self.resumed:
            given = {name: value for name, value in options.items() if value}
            _write_json(path / _OPTIONS, given)
            with whole_file(path / _RECIPE) as scratch:
                scratch.write_text(to_toml(recipe, comments=True))

    def _clear(self) -> None:
        """Remove what a run left that failed before its first checkpoint, but for its features."""
        with only_writer(self.path / _LOCK, 0.0):
            for entry in self.path.iterdir():
                if entry.is_dir() and entry.name != _CACHE:
                    shutil.rmtree(entry)
                elif entry.is_file() and entry.name != _LOCK:
                    entry.unlink()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the folder; a second process that would train into it is refused.

        Files that a killed process left half written are removed. A run that fails before anything took work leaves
        no folder.
        """
        with only_writer(self.path / _LOCK, LOCK_WAIT):
            remove_leftovers(self.path)
            try:
                yield
            except BaseException:
                if not self.resumed and not self.started and not any(self.cache.rglob("*.*")):
                    shutil.rmtree(self.path, ignore_errors=True)
                raise

    def images(self, current: ImageList | None) -> ImageList:
        """The run's list of images: ids must mean the same after a resume, whatever the folder holds by now.

        Ranks that follow the first need not list any themselves.
        """
        file = self.path / _IMAGES
        if file.exists():
            return _read_images(file)
        assert current is not None
        content = {"paths": list(current.paths), "not_read": dict(current.not_read)}
        _write_json(file, {"root": str(current.root.absolute()), **content})
        return current

    def usable(self, seen: Tensor | None) -> Tensor:
        """Ids of the images that could be read when the run began, (usable,) int64: at first those `seen` now."""
        file = self.path / _USABLE
        if seen is not None and not file.exists():
            _write_tensors(file, {"ids": seen})
        return _load_tensors(file)["ids"]

    def feedback(self, current: FeedbackGroups | None) -> FeedbackGroups | None:
        """Feedback about the usable images when the run began: at first the `current` one."""
        if current is not None and not has_feedback(self.path):
            parts = {"groups": current.groups, "has_feedback": current.has_feedback, "apart": current.apart}
            _write_tensors(self.path / _FEEDBACK, parts)
        if not has_feedback(self.path):
            return None
        is_old = (self.path / _OLD_FEEDBACK).exists()
        kept = _load_tensors(self.path / (_OLD_FEEDBACK if is_old else _FEEDBACK))
        groups, apart = kept.pop("groups"), kept.pop("apart")
        (has_feedback_of_image,) = kept.values()  # earlier versions gave it another name
        return FeedbackGroups(groups, has_feedback_of_image, apart)

    def save_initial_fc(self, size: InstanceSize, reasons: tuple[str, ...], fc: nn.Linear) -> None:
        """Keep the initial FC, the size of an instance that was estimated with it, and the reasons for both."""
        _write_tensors(self.path / _INITIAL_FC, fc.state_dict())
        _write_json(self.path / _START, {"size": asdict(size), "reasons": reasons})

    def initial_fc(self) -> dict[str, Tensor]:
        """Initial weight and bias of the fully connected layer."""
        return _load_tensors(self.path / _INITIAL_FC)

    def size(self) -> InstanceSize:
        """How many images an instance has, as estimated with the initial FC."""
        file = self.path / _START
        return read_json(file, _read_size) if file.exists() else UNKNOWN

    def initial_fc_reasons(self) -> list[str]:
        """Why the initial FC is what it is."""
        file = self.path / _START
        return read_json(file, lambda start: list(start.get("reasons", ()))) if file.exists() else []

    def save_pair_trust(self, trust: PairTrust) -> None:
        """Record the result of the consistency test."""
        _write_json(self.path / _PAIR_TRUST, {"trust": trust})

    def save_inspection(self, round_number: int, moment: Moment, inspection: dict[str, Any]) -> None:
        """Keep what the method decides for some anchors at this moment, as plain JSON values."""
        _write_json(self._inspection_file(round_number, moment), inspection)

    def end_round(self, number: int, network: DescriptorNetwork) -> None:
        """Keep the weights a round ended with: its successor starts from them."""
        _write_tensors(self.round_folder(number) / _END, network.state_dict())

    def load_round(self, number: int, network: DescriptorNetwork) -> None:
        """Give the network the weights that round `number` ended with."""
        network.load_state_dict(_load_tensors(self.round_folder(number) / _END))

    def resume_point(self) -> tuple[int, int] | None:
        """(round, step) that a resumed run goes on from; None for a new run."""
        if not self.resumed:
            return None
        number = self.finished_rounds() + 1
        step = latest_step(self.round_folder(number))
        return number, -1 if step is None else step

    def _same_recipe(self, recipe: Recipe) -> None:
        kept = load_recipe(self.path / _RECIPE, stored=True)
        if kept.fingerprint() == recipe.fingerprint():
            return
        before, after = to_toml(kept).splitlines(), to_toml(recipe).splitlines()
        changed = [
            f"{new} (the run has {old})" for old, new in zip(before, after, strict=False) if old != new
        ]
        raise UserError(
            f"{self.path} holds a run with another recipe: {'; '.join(changed[:5])}. "
            f"Resume it with the same settings, or choose another --out."
        )


def _is_leftover(entry: Path) -> bool:
    """Whether a run that failed, or was killed before it had a recipe, left this."""
    return entry.name in (_CACHE, _LOCK, _OPTIONS) or (entry.name[0] == "." and entry.suffix == ".part")


def kept_recipe(path: Path) -> Path | None:
    """The recipe of the run in `path`; None where there is no run."""
    return path / _RECIPE if (path / _RECIPE).exists() else None


def kept_answers(path: Path) -> str | None:
    """The store whose answers the run in `path` learns from; None where it has none."""
    old = path / _OLD_ANSWERS
    if not old.exists():
        return _Folder(path).option("answers")
    return read_json(old, lambda kept: str(kept["store"]))


def has_feedback(path: Path) -> bool:
    """Whether the run in `path` has kept the feedback that it learns from."""
    return (path / _FEEDBACK).exists() or (path / _OLD_FEEDBACK).exists()


def note_measured(path: Path, **results: object) -> None:
    """Keep what was measured of the finished model under these names, for the report."""
    _write_json(path / _MEASURED, _read_json(path / _MEASURED) | results)


def _write_json(file: Path, content: Mapping[str, Any]) -> None:
    with whole_file(file) as scratch:
        scratch.write_text(json.dumps(content))


def _read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file; empty where there is no file."""
    return read_json(file, dict) if file.exists() else {}


def _read_size(start: dict[str, Any]) -> InstanceSize:
    return InstanceSize(**{name: int(value) for name, value in start["size"].items()})


def _read_images(file: Path) -> ImageList:
    def read(kept: dict[str, Any]) -> ImageList:
        not_read = {str(kind): int(count) for kind, count in kept.get("not_read", {}).items()}
        return ImageList(Path(kept["root"]), tuple(map(str, kept["paths"])), not_read=not_read)

    return read_json(file, read)


def _write_tensors(file: Path, tensors: Mapping[str, Tensor]) -> None:
    with whole_file(file) as scratch:
        on_cpu = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
        safetensors.torch.save_file(on_cpu, scratch)


def _load_tensors(file: Path) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load_file(file)
    except safetensors.SafetensorError as error:
        raise UserError(
            f"{file} is damaged ({error}): remove what is newer than it, and go on with --resume."
        ) from error


class RunReader(_Folder):
    """A run folder as it is now: finished, still being written, interrupted, or of another version."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        if not (path / _RECIPE).exists():
            raise UserError(
                f"{path} is not a run folder: it has no {_RECIPE}. Give the --out folder of `insclr train`."
            )

    @property
    def report_file(self) -> Path:
        """Where the report of the run is written."""
        return self.path / _REPORT

    @property
    def reported(self) -> bool:
        """Whether the report is there, and of the finished run."""
        report, model = self.report_file, self.path / MODEL_NAME
        return report.exists() and report.stat().st_mtime >= model.stat().st_mtime

    @property
    def recipe_text(self) -> str:
        """The recipe as it was written, comments included."""
        return (self.path / _RECIPE).read_text(errors="replace")

    def recipe(self) -> dict[str, Any]:
        """The recipe as plain tables, whatever version wrote it."""
        try:
            return rename_old_keys(tomllib.loads(self.recipe_text))
        except (ValueError, RecursionError) as error:
            raise UserError(f"{self.path / _RECIPE} is not valid TOML: {error}. Undo the change.") from None

    def progress(self) -> str:
        """In a few words, what is done: for someone who stopped the run."""
        if self.finished:
            return "the model"
        done, total = self.finished_rounds(), len(self.recipe().get("rounds", ())) or 1
        step = latest_step(self.round_folder(done + 1))
        steps = f" and {step} steps of round {done + 1}" if step else ""
        if done or step:
            return f"{done} of {total} rounds{steps}"
        return "the features computed so far"

    def images(self) -> ImageList:
        """All images that were found; none if the run has not listed them yet."""
        file = self.path / _IMAGES
        return _read_images(file) if file.exists() else ImageList(Path(), ())

    def usable(self) -> list[int] | None:
        """Ids of the images that could be read, ascending; None if that is not known yet."""
        file = self.path / _USABLE
        return _load_tensors(file)["ids"].tolist() if file.exists() else None

    def read_skipped(self) -> dict[str, str]:
        """Path of every image that was left out, with the reason."""
        reasons = Skipped()
        reasons.read(self.skipped_file)
        usable = self.usable()
        if usable is not None:
            reasons.add_others(self.images(), usable)
        return dict(reasons)

    def read_measured(self) -> dict[str, Any]:
        """What `note_measured` kept."""
        return _read_json(self.path / _MEASURED)

    def metrics(self) -> list[dict[str, Any]]:
        """Every record of the log, in order."""
        return read_metrics(self.path)
