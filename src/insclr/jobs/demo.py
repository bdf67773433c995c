"""Run the demo: draw a collection, train, measure before and after, index, report."""

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from insclr.arrays import Descriptors
from insclr.data.images import ImageList, Skipped
from insclr.data.labels import read_labels
from insclr.describe.describer import Describer
from insclr.describe.pipeline import only_last_layer
from insclr.evaluation.evaluate import evaluate_labels
from insclr.evaluation.results import LabelResult
from insclr.jobs.train import train
from insclr.model.model_file import resolve_model
from insclr.report.run_report import write_report
from insclr.retrieval.index import index_images
from insclr.run_folder import note_measured
from insclr.store import open_store
from insclr_demo import draw_collection


@dataclass(frozen=True)
class Demo:
    """What the demo leaves: numbers before and after, and where everything is."""

    before: LabelResult
    after: LabelResult
    folder: Path

    def table(self) -> str:
        """Before and after, one line each."""
        rows = (("pretrained network", self.before), ("after InsCLR", self.after))
        lines = [f"{'':<20}{'mAP':>8}{'R@1':>8}{'R@5':>8}{'R@10':>8}"]
        for name, result in rows:
            numbers = (result.map, *(result.recall(k) for k in (1, 5, 10)))
            lines.append(f"{name:<20}" + "".join(f"{number:8.1f}" for number in numbers))
        return "\n".join(lines)


def run_demo(folder: Path, recipe: str, say: Callable[[str], None]) -> Demo:
    """Do what is not done yet in `folder`; a second call repeats nothing but the measuring."""
    began = time.monotonic()

    def stage(text: str) -> None:
        say(f"[{time.monotonic() - began:4.0f} s] {text}")

    stage("drawing a collection of 60 things, 25 images each")
    collection = draw_collection(folder / "collection")
    labels = read_labels(collection / "labels.csv")
    stage(f"training a pretrained network on the {len(labels)} images, without their labels")
    run = folder / "run"
    model = train(collection, run, recipe, labels=collection / "labels.csv", resume=run.exists())
    stage("indexing the images for search")
    store = folder / "store"
    # Where only the last layer learned, the networks before and after have the same features: made once, and kept.
    features = folder / "features" if only_last_layer(model.recipe) else None
    stage(index_images(Describer(str(run), model, features=features), labels.images, store).summary())
    stage("measuring before and after")
    settings = model.recipe.descriptor
    name = f"pretrained:{model.recipe.network.backbone}"
    pretrained = resolve_model(name)
    pretrained = replace(pretrained, recipe=pretrained.recipe.with_(descriptor=settings))
    described = Describer(name, pretrained, features=features).files(labels.images, Skipped())
    before = evaluate_labels(described.descriptors, labels)
    after = evaluate_labels(_read_stored(store, labels.images), labels)
    views = len(settings.scales) * (2 if settings.zoom else 1)
    note_measured(run, map={"before": before.map, "after": after.map, "views": views})
    write_report(run)
    return Demo(before, after, folder)


def _read_stored(store: Path, images: ImageList) -> Descriptors:
    """What the store holds of these images (images, dim), so that they need not be described again."""
    with closing(open_store(store)) as opened:
        rows = opened.rows_by_path()
        return opened.descriptors([rows[path].id for path in images.paths])
