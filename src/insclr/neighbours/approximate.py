"""An approximate candidate pool for large collections on a CPU, with its measured recall.

An inverted file turned inside out: a nearest-neighbour index answers one query at a time, but a pool asks for
everybody's neighbours at once. So the rows are clustered into lists, every row probes the lists nearest to it,
and all rows that probe a list are scored against it in one matrix product. The scores of a row are packed with
their places into integers, which a vectorised partial sort then ranks. On a GPU the exact pool is fast enough.
"""

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from insclr.neighbours.exact import BLOCK_BYTES, nearest_rows

Item = TypeVar("Item")
Result = TypeVar("Result")

MAIN_DIMENSIONS = 192
QUERY_ROWS = 16384  # rows searched together at most
_BLOCK = 1024  # rows compared with all centres together
CHUNK = 16  # scores move in runs of one cache line
LARGEST_LIST = 16 * CHUNK
SCALE = 2**31 / 1.01  # similarities as integers; one may exceed 1 by a rounding error
SAMPLE = 256  # rows whose exact neighbours choose how much to probe, and measure the recall


@dataclass(frozen=True)
class Lists:
    """The rows sorted into lists of similar ones, each at most `LARGEST_LIST` long."""

    main: Tensor  # (D, d) the directions along which the rows differ most; lists are ranked by these alone
    centres: Tensor  # (C, d) unit rows
    rows: Tensor  # (N,) row ids, list after list
    start: Tensor  # (C + 1,) where each list begins in `rows`

    @cached_property
    def bounds(self) -> list[int]:
        """`start` as plain numbers."""
        return self.start.tolist()

    def small(self, features: Tensor) -> Tensor:
        """Features (.., D) in the few dimensions that rank lists, as unit rows (.., d)."""
        return torch.nn.functional.normalize(features.float() @ self.main, dim=-1)

    @property
    def chunks(self) -> Tensor:
        """How many runs of `CHUNK` scores each list takes, (C,)."""
        return (self.start.diff() + CHUNK - 1) // CHUNK


@dataclass(frozen=True)
class Plan:
    """How a collection is searched, and the sample of rows with known neighbours that chose it."""

    lists: Lists
    width: int  # scores a row gets
    sample: Tensor  # (S,) row ids
    true_ids: Tensor  # (S, P) their nearest rows

    @property
    def size(self) -> int:
        """P."""
        return int(self.true_ids.shape[1])

    def recall(self, ids: Tensor) -> float:
        """The share of the sample's true neighbours that were found: `ids` (N, P) of all rows."""
        # Both sides are sets of distinct ids: a true neighbour is found where it equals any of the row's.
        pairs = zip(self.true_ids, ids[self.sample], strict=True)
        return float(torch.stack([torch.isin(true, found).float().mean() for true, found in pairs]).mean())


def make_plan(
    features: Tensor,
    size: int,
    *,
    recall: float = 0.95,
    lists: int | None = None,
    seed: int = 0,
    block_bytes: int = BLOCK_BYTES,
) -> Plan | None:
    """A plan that finds the `size` nearest rows of each of `features` (N, D), missing about 1 - `recall` of them.

    How many lists a row probes is chosen on a sample of rows. None where a quarter of the collection or more
    would have to be probed: the exact search is the better one then.
    """
    generator = torch.Generator().manual_seed(seed)
    index = make_lists(features, lists or _default_lists(len(features)), generator)
    sample = torch.randperm(len(features), generator=generator)[:SAMPLE]
    _, true_ids = nearest_rows(features, sample, size, block_bytes=block_bytes)
    width = probe_width(features, index, sample, true_ids, recall)
    return None if width is None else Plan(index, width, sample, true_ids)


def search(
    features: Tensor, plan: Plan, first: int, last: int, *, block_bytes: int = BLOCK_BYTES
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Blocks of (rows, similarities, ids) for the rows first ... last - 1 in the order of the lists."""
    for rows, values, found in _search(features, plan, first, last, block_bytes):
        similarities, ids = torch.from_numpy(values), torch.from_numpy(found)
        # A row among very short lists may have met fewer than P others: search for it exactly.
        short = similarities[:, -1] < -0.98
        if short.any():
            exact, exact_ids = nearest_rows(features, rows[short], plan.size, block_bytes=block_bytes)
            ids[short], similarities[short] = exact_ids.int(), exact
        yield rows, similarities, ids


def make_lists(features: Tensor, lists: int, generator: torch.Generator) -> Lists:
    """Cluster the rows by spherical k-means, trained on a sample, and cut long lists into shorter ones."""
    sample = features[torch.randperm(len(features), generator=generator)[: 8 * lists]].float()
    main = _main_directions(sample)
    small = torch.cat([torch.nn.functional.normalize(block @ main, dim=1) for block in _blocks(features)])
    centres = _order_by_nearest(
        _kmeans(torch.nn.functional.normalize(sample @ main, dim=1), lists, generator)
    )
    assigned = nearest_centre(small, centres)
    rows = assigned.argsort(stable=True)
    counts = torch.bincount(assigned, minlength=lists).tolist()
    sizes = torch.cat([_even_parts(count, -(-count // LARGEST_LIST)) for count in counts])
    owner = torch.repeat_interleave(torch.arange(len(sizes)), sizes)  # list of each place in `rows`
    total = torch.zeros(len(sizes), small.shape[1]).index_add_(0, owner, small[rows])
    start = torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
    return Lists(main, torch.nn.functional.normalize(total, dim=1), rows, start)


def _main_directions(sample: Tensor) -> Tensor:
    """The leading principal directions of the sample, (D, d)."""
    dims = min(MAIN_DIMENSIONS, sample.shape[1])
    directions: Tensor = torch.linalg.eigh(sample.T @ sample).eigenvectors
    return directions[:, -dims:]


def _default_lists(images: int) -> int:
    """Enough lists that a few per cent of them suffice, few enough that finding those stays cheap."""
    return int(min(max(16, 5 * images**0.5), images / 8))


def _kmeans(points: Tensor, lists: int, generator: torch.Generator, rounds: int = 3) -> Tensor:
    centres = points[:lists].clone()
    for _ in range(rounds):
        nearest = nearest_centre(points, centres)
        total = torch.zeros_like(centres).index_add_(0, nearest, points)
        empty = torch.bincount(nearest, minlength=lists) == 0
        total[empty] = points[torch.randint(len(points), (int(empty.sum()),), generator=generator)]
        centres = torch.nn.functional.normalize(total, dim=1)
    return centres


def nearest_centre(points: Tensor, centres: Tensor) -> Tensor:
    """The number of the centre that is nearest to each of the points (N, d)."""
    nearest = torch.empty(len(points), dtype=torch.int64)
    own = threading.local()

    def assign(start: int) -> None:
        # In place: small results between large products would keep the memory of every product from being used again.
        if not hasattr(own, "scores"):
            own.scores = torch.empty(_BLOCK, len(centres))
        rows = slice(start, min(start + _BLOCK, len(points)))
        scores = own.scores[: rows.stop - start]
        torch.mm(points[rows], centres.T, out=scores)
        torch.argmax(scores, 1, out=nearest[rows])

    for _ in _in_threads(assign, range(0, len(points), _BLOCK)):
        pass
    return nearest


def _order_by_nearest(centres: Tensor) -> Tensor:
    """The centres in an order that goes from each to the nearest one left: rows close in it probe alike."""
    similarities = centres @ centres.T
    order = [0]
    for _ in range(len(centres) - 1):
        similarities[:, order[-1]] = -torch.inf
        order.append(int(similarities[order[-1]].argmax()))
    return centres[order]


def _blocks(features: Tensor) -> Iterator[Tensor]:
    return (features[start : start + _BLOCK].float() for start in range(0, len(features), _BLOCK))


def _even_parts(count: int, parts: int) -> Tensor:
    places = torch.arange(parts)
    return (count + places) // max(parts, 1)


def probe_width(
    features: Tensor, index: Lists, sample: Tensor, true_ids: Tensor, recall: float
) -> int | None:
    """The fewest scores a row, a multiple of CHUNK, whose lists hold `recall` of the sample's neighbours."""
    list_of = torch.empty(len(features), dtype=torch.int64)
    list_of[index.rows] = torch.repeat_interleave(torch.arange(len(index.centres)), index.start.diff())
    order = (index.small(features[sample]) @ index.centres.T).argsort(1, descending=True)
    used = torch.zeros_like(order).scatter_(1, order, index.chunks[order].cumsum(1))  # up to and with a list
    needed = used.gather(1, list_of[true_ids]).flatten().sort().values  # (SAMPLE * P,)
    # A little above the aim, since the sample is small; and room for every row's own neighbours.
    aim = min(1.0, recall + 0.003)
    chunks = int(needed[min(len(needed) - 1, int(aim * len(needed)))])
    chunks = max(chunks, 2 * (true_ids.shape[1] + LARGEST_LIST) // CHUNK)
    return None if chunks * CHUNK > len(features) / 4 else chunks * CHUNK


def _search(
    features: Tensor, plan: Plan, first: int, last: int, block_bytes: int
) -> Iterator[tuple[Tensor, np.ndarray, np.ndarray]]:
    """Blocks of (rows, similarities, ids): rows that are neighbours in the lists are searched together."""
    index, threads = plan.lists, torch.get_num_threads()
    most = max(256, min(QUERY_ROWS, block_bytes // (4 * plan.width * threads)))
    # As many blocks for each thread, all of one size: none waits for another's last block.
    blocks = -(-(last - first) // (most * threads)) * threads
    block = -(-(last - first) // blocks)
    own = threading.local()

    def search_block(start: int) -> tuple[Tensor, np.ndarray, np.ndarray]:
        if not hasattr(own, "scores"):
            own.scores = _Scores(index, block, features.shape[1], plan.width)
        stop = min(start + block, last)
        own.scores.fill(features, start, stop)
        return index.rows[start:stop], *own.scores.best(plan.size, stop - start)

    yield from _in_threads(search_block, range(first, last, block))


def _in_threads(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """`work` of every item in order. A thread takes whole items: sharing small products, they mostly wait."""
    threads = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield from pool.map(work, items)
    finally:
        torch.set_num_threads(threads)  # what later threads of this process start with


class _Scores:
    """The scores of a block of rows, packed as integers: similarity in the high bits, place in the low ones."""

    def __init__(self, index: Lists, block: int, dim: int, width: int) -> None:
        self.index = index
        self.chunks = index.chunks.int().numpy()
        self.slots = width // CHUNK
        self.place_mask = (1 << (width - 1).bit_length()) - 1
        self.keys = np.empty((block, width), dtype=np.int32)
        self.origin = np.zeros((block, self.slots), dtype=np.int32)  # where a slot's scores lie in index.rows
        # All that a list needs is made in place: fresh memory would cost more than the arithmetic.
        self.probing = torch.empty(block, dim)
        self.scores = torch.empty(block * LARGEST_LIST)
        self.integers = torch.empty(block * LARGEST_LIST, dtype=torch.int32)

    def fill(self, features: Tensor, first: int, last: int) -> None:
        """Score every list against all of the rows `index.rows[first:last]` that probe it."""
        queries = features[self.index.rows[first:last]].float()  # (B, D)
        members, first_slots, bounds = self._probes(queries)
        queries.mul_(SCALE)
        self.keys.fill(np.iinfo(np.int32).min)
        slots = self.keys.reshape(-1).view(f"V{4 * CHUNK}")
        for number, (begin, end) in enumerate(itertools.pairwise(bounds)):
            if begin < end:
                start, stop = self.index.bounds[number : number + 2]
                gallery = features.index_select(0, self.index.rows[start:stop]).float()
                found = self._score(queries, members[begin:end], gallery, start - first)
                run = np.arange(found.shape[1] // CHUNK)
                slots[(first_slots[begin:end, None] + run).ravel()] = found.numpy().ravel().view(slots.dtype)

    def _score(self, queries: Tensor, members: Tensor, gallery: Tensor, offset: int) -> Tensor:
        """Similarities of some rows of the block to one list as integers, in whole chunks.

        `offset` is where the list's own rows begin in the block, if they are in it at all.
        """
        count, length = members.shape[0], gallery.shape[0]
        padded = -(-length // CHUNK) * CHUNK
        probing, scores = self.probing[:count], self.scores[: count * padded].view(count, padded)
        torch.index_select(queries, 0, members, out=probing)
        torch.mm(probing, gallery.T, out=scores[:, :length])
        if padded > length:
            scores[:, length:] = -SCALE
        if -length < offset < queries.shape[0]:
            own = ((members >= offset) & (members < offset + length)).nonzero().squeeze(1)
            scores[own, members[own] - offset] = -SCALE  # nobody is its own neighbour
        return self.integers[: count * padded].view(count, padded).copy_(scores)

    def _probes(self, queries: Tensor) -> tuple[Tensor, np.ndarray, list[int]]:
        """Who probes which list, list by list: (row in the block, its first slot for the list), list bounds."""
        parts = [self._nearest_lists(queries[at : at + 1024], at) for at in range(0, len(queries), 1024)]
        member, probed, first_slot = (np.concatenate(part) for part in zip(*parts, strict=True))
        lists = len(self.chunks)
        order = np.argsort(probed.astype(np.uint16 if lists < 2**16 else np.int64), kind="stable")
        bounds = np.searchsorted(probed[order], np.arange(lists + 1)).tolist()
        return torch.from_numpy(member[order]), first_slot[order], bounds

    def _nearest_lists(self, queries: Tensor, first: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The lists that some rows probe, as many as their slots hold: (row, list, first slot) of each pair."""
        lists = len(self.chunks)
        list_mask = (1 << (lists - 1).bit_length()) - 1
        wanted = min(lists, int(1.5 * self.slots / self.chunks.mean()) + 1)
        scaled = self.index.small(queries).mul_(SCALE) @ self.index.centres.T
        keys = scaled.to(torch.int32).numpy()
        keys &= ~list_mask
        keys |= np.arange(lists, dtype=np.int32)
        keys.partition(lists - wanted, axis=1)
        nearest = np.sort(keys[:, lists - wanted :], axis=1)[:, ::-1] & list_mask  # (B, wanted)
        length = self.chunks[nearest]
        end = length.cumsum(1, dtype=np.int32)
        member, place = np.nonzero(end <= self.slots)
        probed, length, end = nearest[member, place], length[member, place], end[member, place]
        member += first
        first_slot = member * self.slots + end - length
        # A row's lists follow each other in the order of their rank, each as a run of slots.
        within = np.arange(length.sum()) - np.repeat(length.cumsum() - length, length)
        start = self.index.start.numpy()[probed]
        self.origin.reshape(-1)[np.repeat(first_slot, length) + within] = (
            np.repeat(start, length) + CHUNK * within
        )
        return member, probed, first_slot

    def best(self, size: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """The `size` best of the block's first `count` rows: (similarities, ids)."""
        width = self.slots * CHUNK
        keys = self.keys[:count]
        keys &= ~self.place_mask
        keys |= np.arange(width, dtype=np.int32)
        keys.partition(width - size, axis=1)
        top = np.sort(keys[:, width - size :], axis=1)[:, ::-1]  # (rows, size)
        place = top & self.place_mask
        slot = np.take_along_axis(self.origin[:count], place // CHUNK, 1)
        ids = self.index.rows.numpy().take(slot + place % CHUNK, mode="clip").astype(np.int32)
        values = (top & ~self.place_mask).astype(np.float32) / np.float32(SCALE)
        return values, ids
