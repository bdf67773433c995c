"""Labels beside a collection: used to measure, never to train."""

import torch
from torch import Tensor

from insclr.data.images import ImageList
from insclr.errors import UserError
from insclr.evaluation.labels import Labels


def match_instances(labels: Labels, images: ImageList) -> Tensor:
    """The true instance of every image as a number, -1 where the labels do not name it."""
    by_file = {
        (labels.root / path).resolve(): number
        for path, number in zip(labels.paths, labels.instance_ids().tolist(), strict=True)
    }
    found = [by_file.get(images.file(i).resolve(), -1) for i in range(len(images))]
    if max(found) < 0:
        raise UserError(
            f"None of the labels names an image of the collection: labels' paths are relative to {labels.root} "
            f"(for example {labels.root / labels.paths[0]}), the images lie in {images.root}."
        )
    return torch.tensor(found)
