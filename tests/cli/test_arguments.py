"""Arguments in the wrong place or with a slip of the pen: the message names what was given, and what was meant."""

from pathlib import Path

import pytest

import insclr
from helpers.histogram_describer import HistogramDescriber, draw_things
from insclr.cli import app
from insclr.data.images import list_images
from insclr.errors import UserError
from insclr.model.stored import find_model_file
from insclr.recipe import load_recipe
from insclr.retrieval.index import index_images
from insclr.store import open_store


@pytest.fixture
def place(tmp_path: Path) -> Path:
    draw_things(tmp_path / "photos", 2, 2)
    index_images(HistogramDescriber(), list_images(tmp_path / "photos"), tmp_path / "store")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.toml").write_text("")
    return tmp_path


def test_swapped_arguments_are_named(place: Path) -> None:
    with pytest.raises(UserError, match="photos is a folder of photos, not a store"):
        open_store(place / "photos")
    with pytest.raises(UserError, match=r"0\.png is a photo, not a store"):
        open_store(place / "photos" / "0" / "0.png")
    with pytest.raises(UserError, match="run is a run folder, not a store"):
        open_store(place / "run")
    with pytest.raises(UserError, match="store is a store, not a folder of images"):
        list_images(place / "store")
    with pytest.raises(UserError, match="photos is a folder of photos, not a model"):
        find_model_file(place / "photos")
    with pytest.raises(UserError, match="the model comes before the images"):
        list_images("pretrained:efficientnet_lite0")


def test_python_names_the_option_that_was_meant(place: Path) -> None:
    with pytest.raises(TypeError, match=r"There is no option topp\. Did you mean top\?"):
        insclr.search(place / "store", place / "photos" / "0" / "0.png", topp=3)


def test_a_slip_in_the_name_of_a_recipe_is_answered_by_the_one_that_was_meant() -> None:
    with pytest.raises(UserError, match=r"Did you mean default\?"):
        load_recipe("defualt")


def test_help_lists_commands_in_the_order_of_work() -> None:
    import typer

    from insclr.cli import evaluation, indexing, name_commands, sharing, stores, training  # noqa: F401

    names = typer.main.get_command(app).list_commands(None)  # type: ignore[attr-defined]
    work = ["check", "train", "index", "serve", "names", "learn"]
    assert [name for name in names if name in work] == work


def test_photos_are_added_by_the_model_that_the_store_has(small_collection: Path, tmp_path: Path) -> None:
    photos = list_images(small_collection)
    insclr.index("pretrained:efficientnet_lite0", photos.subset(range(2)), tmp_path / "store")
    report = insclr.index(tmp_path / "store", photos.subset(range(4)), tmp_path / "store")
    assert (report.added, report.unchanged) == (2, 2)


def test_python_reads_of_keywords_and_not_of_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    error = UserError("pass --photos DIR or --min-score 0.5: `insclr index MODEL X --store Y`; --no")
    assert "--photos DIR" in str(error)
    monkeypatch.setattr("insclr.errors.in_shell", False)
    assert str(error) == "pass photos=DIR or min_score=0.5: `insclr index MODEL X --store Y`; no"


def test_every_command_has_its_place_in_the_help() -> None:
    import typer

    from insclr.cli import COMMAND_ORDER, evaluation, indexing, name_commands, sharing, stores, training  # noqa: F401

    assert set(typer.main.get_command(app).commands) == set(COMMAND_ORDER)  # type: ignore[attr-defined]
