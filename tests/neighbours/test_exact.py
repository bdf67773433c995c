"""Exact neighbours, block by block."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from helpers.unit_rows import unit_rows
from insclr.neighbours.exact import largest, nearest, nearest_rows, score_blocks


def slow_nearest(queries: Tensor, database: Tensor, size: int, own: list[int]) -> list[list[int]]:
    """Every query against every row, sorted by similarity, then by id."""
    found = []
    for query, left_out in zip(queries.double(), own, strict=True):
        rows = [(-float(query @ row), j) for j, row in enumerate(database.double()) if j != left_out]
        found.append([j for _, j in sorted(rows)[:size]])
    return found


@given(seed=st.integers(0, 10**6), data=st.data())
def test_every_query_finds_its_nearest_rows_but_not_its_own(seed: int, data: st.DataObject) -> None:
    count, images = data.draw(st.integers(0, 5)), data.draw(st.integers(2, 70))
    size = data.draw(st.integers(1, images - 1))
    own = data.draw(st.lists(st.integers(-1, images - 1), min_size=count, max_size=count))
    # Whole numbers, so that scores are exact and many of them equal.
    generator = torch.Generator().manual_seed(seed)
    queries = torch.randint(-2, 3, (count, 3), generator=generator).float()
    database = torch.randint(-2, 3, (images, 3), generator=generator).float()
    block_bytes = data.draw(st.integers(1, 4000))
    values, ids = nearest(
        queries, database, size, own=torch.tensor(own, dtype=torch.int64), block_bytes=block_bytes
    )
    assert ids.tolist() == slow_nearest(queries, database, size, own)
    assert torch.equal(values, (queries @ database.T).gather(1, ids))


def test_without_own_rows_everything_can_be_found() -> None:
    database = unit_rows(0, 30, 4)
    _, ids = nearest(database[:3], database, 30)
    assert ids[:, 0].tolist() == [0, 1, 2]
    assert ids.sort(dim=1).values.tolist() == [list(range(30))] * 3


def test_rows_of_the_collection_are_queries_that_leave_themselves_out() -> None:
    features, rows = unit_rows(1, 50, 6), torch.tensor([7, 0, 49])
    values, ids = nearest_rows(features, rows, 5)
    expected, expected_ids = nearest(features[rows], features, 5, own=rows)
    assert torch.equal(ids, expected_ids)
    assert torch.equal(values, expected)


@pytest.mark.parametrize("block_bytes", [1, 4 * 7 * 3, 10**6])
def test_blocks_of_scores_cover_every_query_once(block_bytes: int) -> None:
    queries, database = unit_rows(2, 10, 4), unit_rows(3, 7, 4)
    own = torch.arange(10) % 8 - 1  # the first and the ninth query have no row
    seen = torch.cat(
        [scores for _, scores in score_blocks(queries, database, own=own, block_bytes=block_bytes)]
    )
    expected = queries @ database.T
    expected[own >= 0, own[own >= 0]] = -torch.inf
    torch.testing.assert_close(seen, expected)


@pytest.mark.parametrize("size", [1, 3, 20])
def test_among_equals_the_lower_column_is_larger(size: int) -> None:
    scores = torch.arange(200).expand(4, -1).remainder(torch.tensor([[2], [5], [50], [1000]])).float()
    values, columns = largest(scores, size)
    for row in range(4):
        order = sorted(range(200), key=lambda j, row=row: (-float(scores[row, j]), j))[:size]  # type: ignore[misc]
        assert columns[row].tolist() == order
        assert values[row].tolist() == scores[row, order].tolist()
