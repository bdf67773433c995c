"""Does what was learned reach things that were not there? Train on half of the things, test on the others.

    python benchmarks/inductive.py LABELS.csv --out FOLDER [--recipe fast] [--swap]

Prints mAP of the other half: pretrained, pretrained with a PCA whitening of the first half, and trained on it.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from insclr.data.labels import Labels, read_labels
from insclr.describe.pipeline import describe_images
from insclr.evaluation.evaluate import evaluate_labels
from insclr.jobs.train import train
from insclr.jobs.whiten import whiten_model
from insclr.model.model_file import Model, resolve_model
from insclr.recipe import load_recipe
from insclr.training.view_size import fit_size


def halves(labels: Labels) -> tuple[Labels, Labels]:
    """The rows of every other thing, and of the rest."""
    names = sorted(set(labels.instances))
    first = set(names[::2])
    ids = range(len(labels))
    return (
        labels.subset(np.array([i for i in ids if labels.instances[i] in first])),
        labels.subset(np.array([i for i in ids if labels.instances[i] not in first])),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("labels", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--recipe", default="fast")
    parser.add_argument("--swap", action="store_true", help="train on the second half, test on the first")
    wanted = parser.parse_args()
    seen, unseen = halves(read_labels(wanted.labels))
    if wanted.swap:
        seen, unseen = unseen, seen
    recipe, _ = fit_size(load_recipe(wanted.recipe), seen.images)
    backbone = recipe.network.backbone
    pretrained = resolve_model(f"pretrained:{backbone}")
    pretrained = replace(pretrained, recipe=pretrained.recipe.with_(descriptor=recipe.descriptor))

    def measure(name: str, model: Model) -> None:
        result = evaluate_labels(describe_images(model, unseen.images), unseen)
        print(f"{name:<32}{result.map:6.2f}", flush=True)

    print(f"trained on {len(seen)} images, tested on {len(unseen)} of other things")
    measure("pretrained", pretrained)
    wanted.out.mkdir(parents=True, exist_ok=True)
    file = wanted.out / "whitened.safetensors"
    whiten_model(pretrained, seen.images, file, dim=recipe.network.dim, power=0.25)
    measure("pretrained + PCA whitening", resolve_model(file))
    measure(f"trained ({wanted.recipe})", train(seen.images, wanted.out / "run", recipe, resume=True))


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
