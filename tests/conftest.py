"""Fixtures for all packages: drawn images, stores, the image sets beside the checkout. Lists what was skipped."""

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from PIL import Image

from insclr import errors

# A busy machine is slow, not wrong.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

pytest_plugins = ["helpers.store_fixtures"]

errors.in_shell = True  # messages are tested as the command line shows them

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List what was skipped, and how to get it."""
    reports = terminalreporter.stats.get("skipped", [])
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in reports)
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count} skipped: {reason}")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of image sets and ground truths beside the checkout."""
    for folder in ("data/products60", "protocols"):
        if not (SHARED / folder).is_dir():
            pytest.skip(f"../shared/{folder} does not exist: put image sets and ground truths there")
    return SHARED


@pytest.fixture(scope="session", autouse=True)
def _own_engine_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Graphs are made once a session, in a folder of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INSCLR_CACHE", str(tmp_path_factory.mktemp("engines")))
        yield


@pytest.fixture(autouse=True)
def _same_random_numbers() -> None:
    # A test that needs torch has imported it at its top; the others need not wait for it.
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


def draw_thing(thing: int, view: int, side: int = 96) -> Image.Image:
    """A picture of one of many things: its own texture, shifted, turned and relit for every view."""
    texture = np.random.default_rng(thing).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    change = np.random.default_rng([thing, view])
    picture = Image.fromarray(texture).resize((side, side), Image.Resampling.NEAREST)
    picture = picture.rotate(
        float(change.uniform(-15, 15)), Image.Resampling.BILINEAR, fillcolor=(128, 128, 128)
    )
    pixels = np.asarray(picture, dtype=np.float32) * change.uniform(0.7, 1.1) + change.normal(
        0, 8, (side, side, 3)
    )
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


@pytest.fixture(scope="session")
def small_collection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 things, 4 pictures each, with labels.csv; read-only for the tests."""
    folder = tmp_path_factory.mktemp("collection")
    lines = ["path,instance"]
    for thing in range(12):
        for view in range(4):
            name = f"thing{thing}-{view}.png"
            draw_thing(thing, view).save(folder / name)
            lines.append(f"{name},thing{thing}")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    return folder
