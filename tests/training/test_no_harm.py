"""No recipe ends below the better of the pretrained and the whitened network, whatever the photos are."""

from dataclasses import replace
from pathlib import Path

import pytest

from helpers.trap_collections import TRAPS, write
from insclr.data.labels import Labels, read_labels
from insclr.describe.pipeline import describe_images
from insclr.evaluation.evaluate import evaluate_labels
from insclr.jobs.train import train
from insclr.jobs.whiten import whiten_model
from insclr.model.model_file import Model, resolve_model

TOLERATED = 0.3  # points of mAP


def measured(model: Model, labels: Labels) -> float:
    return evaluate_labels(describe_images(model, labels.images), labels).map


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["fast", "default"])
@pytest.mark.parametrize("trap", TRAPS)
def test_a_trap_does_no_harm(trap: str, recipe: str, tmp_path: Path) -> None:
    labels = read_labels(write(TRAPS[trap](0), tmp_path / "photos"))
    trained = train(labels.images, tmp_path / "run", recipe)
    pretrained = resolve_model(f"pretrained:{trained.recipe.network.backbone}")
    # Same size, same looks.
    pretrained = replace(pretrained, recipe=pretrained.recipe.with_(descriptor=trained.recipe.descriptor))
    whitened = tmp_path / "whitened.safetensors"
    dim = min(trained.network.dim, len(labels.images) - 1)
    whiten_model(pretrained, labels.images, whitened, dim=dim, power=0.25)
    before = {
        "pretrained": measured(pretrained, labels),
        "whitened": measured(resolve_model(whitened), labels),
    }
    after = measured(trained, labels)
    print(f"{trap} {recipe}: {before} -> {after:.2f}")
    assert after >= max(before.values()) - TOLERATED
