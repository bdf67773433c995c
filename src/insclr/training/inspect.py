"""Inspect the mining: the decisions of a method for some anchors, as plain JSON values."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from insclr.data.images import ImageList
from insclr.methods.method import Explanation, Method
from insclr.mining.candidates import mean_precision

MEASURED = 256  # anchors behind the histograms and the summary
PASSED_OVER = 4  # candidates shown that came nearest to being mined
_BLOCK = 32  # anchors explained at once
_PAIRS = 20_000
# Fixed for all rounds and runs, so that histograms can be laid beside each other.
_EDGES = torch.linspace(-1, 1, 81)


def inspect_method(
    method: Method,
    criteria: Mapping[str, Any],
    images: ImageList,
    instances: Tensor | None,
    *,
    anchors: int = 12,
    seed: int = 0,
) -> dict[str, Any] | None:
    """Sample tuples, histograms and a summary; None for a method that explains nothing.

    `instances` (N,), -1 where unknown, say which choices are right. Equal seeds take equal anchors, so that
    inspections of several rounds can be compared.
    """
    generator = torch.Generator().manual_seed(seed)
    sample = torch.randperm(len(images), generator=generator)[: max(anchors, MEASURED)]
    truth = torch.full((len(images),), -1) if instances is None else instances.cpu()
    blocks = [method.explain(block) for block in sample.split(_BLOCK)]
    explained = [block for block in blocks if block is not None]
    random_pairs = _random_pairs(method, len(images), generator)
    if not explained or random_pairs is None:
        return None
    tuples = [
        _describe(one, place, images, truth) for one in explained for place in range(len(one.ids))
    ]  # fmt: skip
    return {
        "criteria": dict(criteria),
        "labelled": instances is not None,
        "summary": _summary(explained, truth, len(sample)),
        "histograms": {
            "edges": [round(edge, 3) for edge in _EDGES.tolist()],
            "counts": {"random pairs": _count(random_pairs), **_histograms(explained)},
        },
        "tuples": tuples[:anchors],
    }


def _random_pairs(method: Method, images: int, generator: torch.Generator) -> Tensor | None:
    """Similarities of random pairs of different images, by the newest descriptors."""
    first = torch.randint(images, (_PAIRS,), generator=generator)
    second = (first + torch.randint(1, images, (_PAIRS,), generator=generator)) % images
    products = []
    for a, b in zip(first.split(2000), second.split(2000), strict=True):
        one, other = method.descriptors(a), method.descriptors(b)
        if one is None or other is None:
            return None
        products.append((one * other).sum(1))
    return torch.cat(products)


def _summary(explained: list[Explanation], truth: Tensor, anchors: int) -> dict[str, Any]:
    """Positives an anchor has of each kind, and the mean share of right ones where it is known."""
    kinds: dict[str, list[tuple[Tensor, Tensor, Tensor]]] = {}
    for one in explained:
        first, members, selected = one.ids[:, 0], one.ids[:, 1:], one.selected[:, 1:]
        kinds.setdefault("nn", []).append((first, members, torch.ones_like(selected)))
        kinds.setdefault("batch", []).append((first, members, selected))
        if one.mined is not None and one.repeat is not None:
            kinds.setdefault("memory", []).append((first, one.candidates, one.mined))
            for number in range(1, int(one.repeat.max()) + 1):
                chosen = one.repeat == number
                kinds.setdefault(f"repeat {number}", []).append((first, one.candidates, chosen))
    summary: dict[str, Any] = {"anchors": anchors}
    for name, parts in kinds.items():
        first, ids, chosen = (torch.cat(columns) for columns in zip(*parts, strict=True))
        precision = mean_precision(truth, first, ids, chosen)
        summary[name] = {"positives": float(chosen.sum()) / anchors, "precision": precision}
    return summary


def _histograms(explained: list[Explanation]) -> dict[str, list[int]]:
    """Counts of the similarities in the common bins."""
    nothing = torch.empty(0)
    mined = [one.candidate_similarities[one.mined] for one in explained if one.mined is not None]
    return {
        "nearest neighbour": _count(torch.cat([one.similarities[:, 0] for one in explained])),
        "tuple members": _count(torch.cat([one.similarities.flatten() for one in explained])),
        "mined": _count(torch.cat([*mined, nothing])),
    }


def _describe(one: Explanation, place: int, images: ImageList, truth: Tensor) -> dict[str, Any]:
    """One tuple, what was chosen for it and what was passed over."""
    anchor, *members = one.ids[place].tolist()
    instance = int(truth[anchor])

    def image(number: int, similarity: float) -> dict[str, Any]:
        right = bool(truth[number] == instance) if instance >= 0 else None
        return {"path": images.paths[number], "similarity": round(similarity, 4), "right": right}

    def candidate(column: int) -> dict[str, Any]:
        score = None if one.score is None else float(one.score[place, column])
        return image(int(one.candidates[place, column]), float(one.candidate_similarities[place, column])) | {
            "score": None if score is None or score == float("-inf") else round(score, 4),
            "repeat": 0 if one.repeat is None else int(one.repeat[place, column]),
        }

    mined, passed = _rank_candidates(one, place)
    own, selected = one.similarities[place].tolist(), one.selected[place, 1:].tolist()
    return {
        "anchor": images.paths[anchor],
        "members": [
            image(number, similarity) | {"selected": taken}
            for number, similarity, taken in zip(members, own, selected, strict=True)
        ],
        "mined": [candidate(column) for column in mined],
        "passed": [candidate(column) for column in passed],
    }


def _rank_candidates(one: Explanation, place: int) -> tuple[list[int], list[int]]:
    """Columns of the mined, by repeat and score; and of the best that were not mined."""
    rest = ~(one.candidates[place][:, None] == one.ids[place]).any(1)  # (P,)
    if one.mined is None or one.repeat is None or one.score is None:
        return [], rest.nonzero()[:PASSED_OVER, 0].tolist()
    mined, repeat = one.mined[place], one.repeat[place]
    order = one.score[place].sort(descending=True, stable=True).indices.tolist()
    chosen = sorted((column for column in order if mined[column]), key=lambda column: int(repeat[column]))
    passed = [column for column in order if rest[column] and not mined[column]]
    return chosen, passed[:PASSED_OVER]


def _count(values: Tensor) -> list[int]:
    bins = (torch.bucketize(values, _EDGES, right=True) - 1).clamp(0, len(_EDGES) - 2)
    return torch.bincount(bins, minlength=len(_EDGES) - 1).tolist()
