"""The model card: what it tells of a model and its data, and what it keeps to itself."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import insclr
from insclr.errors import UserError
from insclr.model.stored import read_model_file, write_model_file
from insclr.recipe import NetworkRecipe
from insclr.sharing.card import (
    Origin,
    Result,
    model_card,
    origin_of,
    read_results,
    run_results,
    training_sentence,
)


def _front_matter(card: str) -> dict[str, Any]:
    assert card.startswith("---\n")
    table = yaml.safe_load(card.split("---\n")[1])
    assert isinstance(table, dict)
    return table


def test_the_card_tells_recipe_digest_data_use_and_licence(small_model: Path) -> None:
    stored = read_model_file(small_model)
    card = model_card(
        "alice/things", stored, Origin("Weights of somebody.", "mit"), training_sentence(stored)
    )
    front = _front_matter(card)
    assert front["license"] == "mit"
    assert front["library_name"] == "insclr"
    assert "image-retrieval" in front["tags"]
    assert "base_model" not in front
    assert stored.digest in card
    assert 'backbone = "test_resnet"' in card  # the whole recipe
    assert "unit vector of 16 numbers |" in card
    assert "1,234 images of a private collection. They are not published. No labels were used." in card
    assert "Not measured, or not told." in card
    assert "## Intended use and limits" in card
    assert "It holds, in changed form: Weights of somebody." in card
    assert "insclr pull alice/things --out model.safetensors" in card


def test_the_card_lists_what_was_learned_from_labels_and_what_was_left_out(small_model: Path) -> None:
    stored = replace(read_model_file(small_model), notes={"labels": "this model was TRAINED WITH LABELS"})
    assert training_sentence(stored, 1000, 3) == (
        "1,000 images of a private collection, 3 of them left out as unreadable. They are not published. "
        "Labels: this model was TRAINED WITH LABELS."
    )
    assert training_sentence(stored).startswith("How many images it was trained on is not recorded.")


def test_names_of_images_and_instances_never_reach_the_card(small_model: Path, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    figures = {"map": 71.25, "r@1": 88.0, "queries": 40, "images": 50}
    secrets = {"instances": {"map of the vault": 3.0}, "worst": [{"path": "secret/plan.jpg", "ap": 1.0}]}
    file.write_text(json.dumps(figures | secrets))
    pushed = insclr.push(small_model, "alice/things", results=[file], dry_run=True)
    assert "own labelled images, leave-one-out, 40 queries among 50 images | 71.2 | 88.0 |" in pushed.card
    assert "secret" not in pushed.card
    assert "vault" not in pushed.card
    assert str(small_model.parent) not in pushed.card


def test_a_public_benchmark_is_also_in_the_front_matter(small_model: Path, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    easy, hard = {"map": 60.0, "mp@10": 70.0, "queries": 68}, {"map": 20.5, "mp@10": None, "queries": 70}
    file.write_text(
        json.dumps(
            {
                "protocol": "roxford5k",
                "queries": 70,
                "images": 4993,
                "missing": [],
                "easy": easy,
                "hard": hard,
            }
        )
    )
    results = read_results(file)
    assert [result.figures for result in results] == [{"map": 60.0, "mp@10": 70.0}, {"map": 20.5}]
    stored = read_model_file(small_model)
    front = _front_matter(
        model_card("alice/things", stored, Origin("", "mit", "timm/x"), "No data.", results)
    )
    assert front["base_model"] == "timm/x"
    (entry,) = front["model-index"]
    assert entry["name"] == "things"
    first = entry["results"][0]
    assert first["dataset"]["type"] == "roxford5k"
    assert first["metrics"] == [{"type": "map", "value": 60.0}, {"type": "mp@10", "value": 70.0}]


@pytest.mark.parametrize(
    "content", ["{", "[]", "{}", '{"map": "high"}', '{"protocol": "a\\nb: c", "map": 1.0}']
)
def test_a_file_without_figures_is_refused(tmp_path: Path, content: str) -> None:
    (file := tmp_path / "result.json").write_text(content)
    with pytest.raises(UserError, match="holds no figures"):
        read_results(file)


def test_a_run_folder_tells_what_was_measured_there() -> None:
    log = [{"event": "finish", "map": 50.0, "recall_at_1": 60.0}]
    demo = {"map": {"before": 40.0, "after": 52.0, "views": 1}}
    assert [(one.measured_on, dict(one.figures)) for one in run_results(demo, log)] == [
        ("the images that it was trained on: before training", {"map": 40.0}),
        ("the images that it was trained on", {"map": 52.0}),
    ]
    (logged,) = run_results({}, log)
    assert dict(logged.figures) == {"map": 50.0, "r@1": 60.0}
    assert run_results({}, [{"event": "finish", "map": None}]) == []


def test_the_licence_is_that_of_the_weights_it_started_from() -> None:
    assert origin_of(NetworkRecipe()).license == "apache-2.0"
    torchvision = origin_of(NetworkRecipe(backbone="resnet50.tv_in1k"))
    assert torchvision.license == "bsd-3-clause"  # as torchvision publishes them
    assert torchvision.base_model == "timm/resnet50.tv_in1k"
    given = origin_of(NetworkRecipe(backbone="resnet50", weights="mine.pth"))
    assert (given.license, given.base_model) == ("", "")
    assert "mine.pth" in given.about
    assert "licence is not recorded" in given.about


def test_a_licence_or_a_card_of_your_own(small_model: Path, tmp_path: Path) -> None:
    pushed = insclr.push(small_model, "alice/things", license="cc-by-nc-4.0", dry_run=True)
    assert _front_matter(pushed.card)["license"] == "cc-by-nc-4.0"
    (own := tmp_path / "card.md").write_text("---\nlicense: mit\n---\n# Mine\n")
    assert insclr.push(small_model, "a/b", card=own, dry_run=True).card == own.read_text()
    with pytest.raises(UserError, match="There is no card"):
        insclr.push(small_model, "a/b", card=tmp_path / "nowhere.md", dry_run=True)


def test_a_name_from_elsewhere_breaks_neither_table_nor_front_matter(
    small_model: Path, tmp_path: Path
) -> None:
    stored = read_model_file(small_model)
    odd = stored.recipe.with_(name="a | b\n---\nlicense: stolen", about="*x*\n# y")
    file = tmp_path / "odd.safetensors"
    write_model_file(file, stored.weights, odd, {})
    card = insclr.push(file, "alice/things", dry_run=True).card
    assert _front_matter(card).get("license") != "stolen"
    assert "| recipe | a \\| b --- license: stolen: *x* # y |" in card


def test_results_stand_side_by_side(small_model: Path) -> None:
    results = [Result("ours", {"map": 1.0, "r@1": 2.0}), Result("theirs", {"map": 3.0})]
    card = model_card("a/b", read_model_file(small_model), Origin(""), "No data.", results)
    table = "| measured on | mAP | R@1 |\n|---|---|---|\n| ours | 1.0 | 2.0 |\n| theirs | 3.0 |  |"
    assert table in card
