"""The models of a local store, side by side: the first one's rows are in STORE, those of model N in STORE/models/N.

Feedback, local features and thumbnails belong to the store. One small file names the current model, so that
changing the model of a store is one atomic step.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from insclr.errors import UserError
from insclr.files import read_json, whole_file

MODELS = "models"
_FILE = "models.json"


@dataclass(frozen=True)
class StoreModels:
    """The numbers of the current model and of the one before it (0: none); `last` is the highest one given."""

    current: int = 1
    before: int = 0
    last: int = 1

    def use(self, number: int) -> "StoreModels":
        """What to keep once model `number` is the current one."""
        before = self.before if number == self.current else self.current
        return StoreModels(number, before, max(self.last, number))


def read_models(home: Path) -> StoreModels:
    """The models of the store in this folder."""
    file = home / MODELS / _FILE
    if not file.exists():
        return StoreModels()
    try:
        return read_json(
            file, lambda found: StoreModels(**{name: int(value) for name, value in found.items()})
        )
    except UserError as error:
        raise UserError(f"{error} Without it, the first model is used again.") from error


def write_models(home: Path, models: StoreModels) -> None:
    """Keep them, in one step."""
    with whole_file(home / MODELS / _FILE) as scratch:
        scratch.write_text(json.dumps(asdict(models)), encoding="utf-8")


def model_folder(home: Path, number: int) -> Path:
    """Where the rows of a model are; as an address of a store it opens this model. Nothing but that for the first."""
    return home / MODELS / str(number)


def model_before(uri: str | Path) -> Path | None:
    """The address of the model that a store had before the current one; None where there is none."""
    home = Path(uri)
    number = read_models(home).before if home.is_dir() else 0
    return model_folder(home, number) if number else None


def rows_folder(home: Path, number: int) -> Path:
    """The folder of a model's own files."""
    return home if number == 1 else model_folder(home, number)


def split_model(folder: Path, rows: str) -> tuple[Path, int]:
    """The store that a folder is or lies in, and the number of the model that it names or else the current one."""
    home = folder.parent.parent
    if folder.name.isdecimal() and folder.parent.name == MODELS and (home / rows).is_file():
        return home, int(folder.name)
    return folder, read_models(folder).current
