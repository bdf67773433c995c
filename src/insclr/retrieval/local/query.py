"""What a search needs of its queries' images besides their descriptors."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from PIL import Image

from insclr.data.decode import Box
from insclr.retrieval.describer import ModelDescriber
from insclr.retrieval.local.features import LONGEST
from insclr.retrieval.local.ranking import NO_DETAILS, QueryDetails
from insclr.retrieval.local.verification import outline_of, query_parts


def details_of(
    describer: ModelDescriber,
    images: Sequence[Image.Image],
    box: Box | None,
    larger: Sequence[Callable[[int], Image.Image]],
    *,
    ranking: str,
    verifier: str,
) -> QueryDetails:
    """What a ranking and a verifier need of images, or of the parts of them inside the box.

    `larger` decode each image anew at a longest side, for where it has to be larger than the one at hand.
    """

    def at_least(longest: int) -> list[Image.Image]:
        return [
            image if box or max(image.size) >= longest else decode_larger(longest)
            for image, decode_larger in zip(images, larger, strict=True)
        ]

    found, boxes = NO_DETAILS, [box] * len(images)
    if ranking == "asmk":
        found = replace(found, cells=describer.cells(at_least(describer.cells_longest), boxes))
    if verifier == "geometric":
        found = replace(found, parts=[query_parts(image, box) for image in at_least(LONGEST)])
    elif verifier == "dsm":
        large = at_least(describer.cells_longest)
        cells = zip(describer.map_cells(large, boxes), large, strict=True)
        parts = [(one, outline_of(image, box)) for one, image in cells]
        found = replace(found, map_cells=parts, describer=describer)
    return found
