"""A run that failed or was interrupted: what it remembers, and that it never stands in the way of the next."""

from pathlib import Path

import pytest

from helpers.small_training import SMALL
from insclr import progress
from insclr.describe import collection_features
from insclr.errors import UserError
from insclr.jobs.train import train
from insclr.recipe import load_recipe
from insclr.run_folder import RunFolder, RunReader
from insclr.tracking import read_metrics
from insclr.training import round


def fail_in_round(patch: pytest.MonkeyPatch, number: int) -> None:
    train_steps = round.train_steps  # type: ignore[attr-defined]

    def failing(this):
        if this.number == number:
            raise UserError("no luck")
        return train_steps(this)

    patch.setattr(round, "train_steps", failing)


def failed(images: Path, out: Path, in_round: int, **options: object) -> None:
    with pytest.MonkeyPatch.context() as patch:
        fail_in_round(patch, in_round)
        with pytest.raises(UserError, match="no luck"):
            train(images, out, "fast", changes=SMALL, **options)  # type: ignore[arg-type]


def noted_bars(patch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """Title, total and start of every bar that describing shows from now on."""
    bars: list[tuple[str, int, int]] = []
    shown = collection_features.progress_bar  # type: ignore[attr-defined]

    def noted(title: str, total: int, done: int = 0):
        bars.append((title, total, done))
        return shown(title, total, done)

    patch.setattr(collection_features, "progress_bar", noted)
    return bars


def test_resume_needs_nothing_but_the_run_folder_and_is_not_silent(
    small_collection: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(small_collection)
    run, cache = tmp_path / "run", tmp_path / "cache"
    failed(Path(), run, in_round=2, labels="labels.csv", cache=cache, engine="onnx")
    assert RunReader(run).progress() == "1 of 2 rounds"
    monkeypatch.chdir(tmp_path)
    described = {file: file.stat().st_mtime_ns for file in cache.rglob("*.bin")}
    capsys.readouterr()
    monkeypatch.setattr(progress, "EVERY", 0.02)
    model = train(None, "run", resume=True)
    told = capsys.readouterr().err
    assert "plan: 1 of 2 rounds are done; 1 round of the last layer, the report" in told
    for stage in (
        "loading the network",
        "round 2: looking for photos of the same thing",
        "writing the report",
    ):
        assert f"\n{stage}: 0 s so far" in f"\n{told}", stage
    assert model.recipe.fingerprint() == load_recipe("fast", SMALL).fingerprint()
    assert described == {file: file.stat().st_mtime_ns for file in cache.rglob("*.bin")}  # nothing anew
    assert not (run / "cache").exists()
    assert read_metrics(run)[-1]["map"] > 0  # by the labels
    assert len(RunReader(run).images()) == 48


def test_without_images_there_must_be_a_run_to_resume(tmp_path: Path) -> None:
    for resume in (True, False):
        with pytest.raises(UserError, match="Name the images"):
            train(None, tmp_path / "run", resume=resume)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("mistake", ["network.weights=nowhere.pt", "network.backbone=no_such_net"])
def test_a_mistake_in_the_recipe_leaves_no_folder(
    small_collection: Path, tmp_path: Path, mistake: str
) -> None:
    with pytest.raises(UserError):
        train(small_collection, tmp_path / "run", "fast", changes=(*SMALL, mistake))
    assert not (tmp_path / "run").exists()


def test_wrong_labels_and_unreadable_photos_leave_no_folder(small_collection: Path, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for name in ("a.png", "b.png"):
        (photos / name).write_bytes(b"no image")
    with pytest.raises(UserError, match="None of the labels"):
        train(photos, tmp_path / "run", "fast", changes=SMALL, labels=small_collection / "labels.csv")
    with pytest.raises(UserError, match="can be read"):
        train(photos, tmp_path / "run", "fast", changes=SMALL)
    assert not (tmp_path / "run").exists()


def test_a_run_that_failed_before_its_first_checkpoint_is_begun_anew_with_its_features(
    small_collection: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    bars = noted_bars(monkeypatch)
    failed(small_collection, run, in_round=1)
    assert bars[0] == ("describing", 48, 0)  # as many as there are, not as fit into a block
    assert RunReader(run).progress() == "the features computed so far"
    described = {file: file.stat().st_mtime_ns for file in run.rglob("*.bin")}
    assert described
    train(small_collection, run, "fast", changes=(*SMALL, "rounds.lr=1e-4"))
    assert described == {file: file.stat().st_mtime_ns for file in run.rglob("*.bin")}
    assert (run / "report.html").exists()
    with pytest.raises(UserError, match="already holds a run"):
        train(small_collection, run, "fast", changes=SMALL)


def test_a_run_under_way_is_not_begun_anew(small_collection: Path, tmp_path: Path) -> None:
    recipe = load_recipe("fast", SMALL)
    run = RunFolder(tmp_path / "run", recipe, resume=False)
    with run.writing(), pytest.raises(UserError, match="another writer"):
        train(small_collection, tmp_path / "run", "fast", changes=SMALL)
    assert (tmp_path / "run" / "recipe.toml").exists()


def test_a_run_killed_before_it_had_a_recipe_is_begun_anew(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    for left in ("options.json", ".recipe.toml.0a1b2c3d.part"):
        (tmp_path / "run" / left).write_text("{}")
    RunFolder(tmp_path / "run", load_recipe("fast"), resume=False)
    assert (tmp_path / "run" / "recipe.toml").exists()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("dear")
    with pytest.raises(UserError, match="is not a run folder"):
        RunFolder(tmp_path / "other", load_recipe("fast"), resume=False)
