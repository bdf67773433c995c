"""What a search needs of its queries' images besides their descriptors."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from PIL import Image

from insclr.data.decode import Box
from insclr.describe.describer import ModelDescriber
from insclr.retrieval.local import dsm
from insclr.retrieval.local.extractor import store_extractor
from insclr.retrieval.local.features import LONGEST
from insclr.retrieval.local.ranking import NO_DETAILS, QueryDetails
from insclr.retrieval.local.verification import outline_of, query_parts
from insclr.store import Store


def details_of(
    describer: ModelDescriber,
    images: Sequence[Image.Image],
    box: Box | None,
    larger: Sequence[Callable[[int], Image.Image]],
    *,
    store: Store,
    ranking: str,
    verifier: str,
) -> QueryDetails:
    """What a ranking and a verifier need of images, or of the parts of them inside the box, to search a store.

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
        extractor = store_extractor(store)
        parts = [query_parts(image, box, extractor) for image in at_least(LONGEST)]
        found = replace(found, parts=parts)
    elif verifier == "dsm":
        large = at_least(describer.cells_longest)
        cells = zip(describer.cells(large, boxes, dsm.SCALES, dsm.MAX_CELLS), large, strict=True)
        map_cells = [(one, outline_of(image, box)) for one, image in cells]
        found = replace(found, map_cells=map_cells, describer=describer)
    return found
