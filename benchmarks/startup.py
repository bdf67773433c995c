"""Commands from the shell to their end: what a person waits for before anything is computed."""

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from insclr.model.model_file import save_model
from insclr.model.network import create_network
from insclr.recipe import load_recipe
from photos import draw_photos
from table import Row, milliseconds

PHOTOS, TURNS = 1500, 10


def measure(photos: int = PHOTOS) -> list[Row]:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "photos"
        images = draw_photos(folder, photos, (320, 240))
        photo, store, trained = str(images.file(0)), f"{scratch}/store", f"{scratch}/trained"
        _run("index", "pretrained:efficientnet_lite0", str(folder), "--store", store)
        _run("index", _like_trained(Path(scratch) / "model.safetensors"), str(folder), "--store", trained)
        commands = {
            f"search among {photos:,} photos, the pretrained network": (("search", store, photo), 1.5, 1.0),
            "the same, a model of `fast`, 224 px and two views": (("search", trained, photo), 1.5, 1.0),
            "help": (("--help",), None, None),
            "a store that is not there": (("search", f"{scratch}/none", photo), 0.5, None),
            "a command that there is not": (("serch",), 0.5, None),
        }
        return [_measured(f"insclr: {name}", *wanted) for name, wanted in commands.items()]


def _like_trained(file: Path) -> str:
    """A model file as `fast` leaves it for photos of this size; its last layer is that of a start by chance."""
    recipe = load_recipe("fast", ("descriptor.size=224", "descriptor.zoom=0.7"))
    save_model(file, create_network(recipe.network), recipe)
    return str(file)


def _measured(name: str, command: tuple[str, ...], wall: float | None, processor: float | None) -> Row:
    taken = [_run(*command) for _ in range(TURNS)]
    least, busy = min(one for one, _ in taken), min(one for _, one in taken)
    bar = "" if wall is None else f"<= {wall} s" + ("" if processor is None else f", {processor} s")
    met = None if wall is None else least <= wall and (processor is None or busy <= processor)
    return Row(name, f"{milliseconds(least)}, {milliseconds(busy)} of processor time", bar=bar, reached=met)


def _run(*command: str) -> tuple[float, float]:
    """Seconds on the wall, and of processor time of the command and its children."""
    before, began = _used(), time.perf_counter()
    subprocess.run([sys.executable, "-m", "insclr", *command], capture_output=True)
    return time.perf_counter() - began, _used() - before


def _used() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
