"""What links between images, by the hashes of their content, mean for images at places."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from insclr.arrays import Ids
from insclr.feedback.links import Links


@dataclass(frozen=True)
class Known:
    """Numbers (N,) of what images are known to show, and the numbers that are apart."""

    same: Ids
    apart: list[tuple[int, int]]


def known_places(links: Links, hashes: Sequence[str]) -> Known:
    """What links say about the images of these hashes; copies of a file show the same."""
    places: dict[str, list[int]] = defaultdict(list)
    for place, image in enumerate(hashes):
        places[image].append(place)
    same = np.arange(len(hashes))
    for copies in places.values():
        same[copies] = copies[0]
    number: dict[str, int] = {}  # of a component, by its root
    for component in links.components():
        here = [place for image in component for place in places.get(image, ())]
        if here:
            same[here] = here[0]
            number[links.root(component[0])] = here[0]
    roots = ((links.root(one), links.root(other)) for one, other in links.apart())
    return Known(
        same, [(number[one], number[other]) for one, other in roots if one in number and other in number]
    )
