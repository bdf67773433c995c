"""`insclr index` on photos of 12 megapixels, at 320 px with two views: processor time of a photo, and memory."""

import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from insclr.model.model_file import save_model
from insclr.model.network import create_network
from insclr.recipe import load_recipe
from photos import draw_photos
from table import Row

_FEW, _MANY = 8, 48
_SIZE = (4000, 3000)
_BAR = 0.090  # seconds of one core a photo: 1,000 photos in 45 s on two cores


def measure() -> list[Row]:
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        torch.manual_seed(0)
        recipe = load_recipe("fast").at_size(320)
        save_model(home / "model.safetensors", create_network(recipe.network), recipe)
        draw_photos(home / "many", _MANY, _SIZE)
        (home / "few").mkdir()
        for file in sorted((home / "many").iterdir())[:_FEW]:
            (home / "few" / file.name).hardlink_to(file)
        _index(home, "few", "first")  # makes the graph
        few, many = (_index(home, name, f"store of {name}") for name in ("few", "many"))
    took = (many[0] - few[0]) / (_MANY - _FEW)
    return [
        Row(
            "one photo of 4,000 x 3,000 px",
            f"{1000 * took:.0f} ms of processor time",
            "90 ms: 1,000 photos in 45 s on two cores",
            f"{took / _BAR:.2f} x",
            "<= 1",
            took <= _BAR,
        ),
        Row(
            f"most memory, {_MANY} photos against {_FEW}",
            f"{many[1] / 1e9:.2f} GB",
            f"{few[1] / 1e9:.2f} GB",
            f"{many[1] / few[1]:.2f} x",
        ),
    ]


def _index(home: Path, photos: str, store: str) -> tuple[float, float]:
    """Seconds of processor time and most bytes of the command, without local features."""
    words = ("index", home / "model.safetensors", home / photos, "--store", home / store, "--local", "off")
    command = [sys.executable, "-c", _MEASURED, sys.executable, "-m", "insclr", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds, memory = map(float, done.stdout.splitlines()[-1].split())
    return seconds, memory


_MEASURED = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=sys.stderr)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)
"""
