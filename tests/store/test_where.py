"""The filter language: what it reads, and what it says about what it cannot read."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insclr.errors import UserError
from insclr.store.where import (
    Compare,
    Joined,
    Not,
    meets,
    number_of,
    parse_where,
    to_milvus,
)

COLUMNS = ["year", "brand"]


def test_and_binds_tighter_than_or() -> None:
    a, b, c = (Compare("year", "=", float(n)) for n in (1, 2, 3))
    assert parse_where("year = 1 or year = 2 and year = 3", COLUMNS) == Joined(
        "or", (a, Joined("and", (b, c)))
    )
    assert parse_where("(year = 1 OR year == 2) AND year = 3", COLUMNS) == Joined(
        "and", (Joined("or", (a, b)), c)
    )


def test_values_are_numbers_only_when_they_stand_bare() -> None:
    assert parse_where("year = -1.5e1", COLUMNS) == Compare("year", "=", -15.0)
    assert parse_where("year = '15'", COLUMNS) == Compare("year", "=", "15")
    assert parse_where("brand = 7up", COLUMNS) == Compare("brand", "=", "7up")
    assert parse_where("brand contains 15", COLUMNS) == Compare("brand", "contains", "15")
    assert parse_where("not brand != \"it''s\"", COLUMNS) == Not(Not(Compare("brand", "=", "it''s")))


def test_blank_means_no_filter() -> None:
    assert parse_where("  ", COLUMNS) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("colour = red", "no column 'colour' in this store; it has: path, year, brand, date taken"),
        ("year >", "ends where a value"),
        ("year 5", "after column 'year'"),
        ("year = 5 brand = x", "'and' or 'or' is expected in the filter where 'brand' stands"),
        ("(year = 5", r"'\)' is expected in the filter at its end"),
        ("brand = 'open", "a quote is left open"),
        ("brand = Red apple", "quote it: write 'Red apple' instead of Red apple"),
        ("brand = Red apple, large and year = 5", "quote it: write 'Red apple, large' instead"),
        ("brand in (Red apple, x)", "quote it: write 'Red apple' instead"),
        ("brand = 2024-05-01", "quote it: write '2024-05-01' instead"),
        ("path contains shelf (old)", r"quote it: write 'shelf \(old\)' instead"),
        ("brand = O'Neill", "quote it: a value with ' in it is written in double quotes"),
        ("date taken > 5", "quote it: write the column as 'date taken'"),
        ("year = 1e999", "too large"),
        ("brand in ()", "a value is expected"),
        ("not " * 100 + "year = 1", "nested deeper"),
        ("brand = " + "x" * 5000, "characters"),
        ("= 5", "column name is expected"),
    ],
)
def test_a_mistake_is_explained(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_where(text, [*COLUMNS, "date taken"])


@given(st.text(alphabet=st.sampled_from(list("abyearbrand'\"()=<>!,5. ;-%")), max_size=60))
def test_any_text_is_either_understood_or_a_user_error(text: str) -> None:
    try:
        condition = parse_where(text, COLUMNS)
    except UserError:
        return
    if condition is not None:
        meets(condition, "a/b.jpg", {"year": "2015", "brand": "b"})
        to_milvus(condition)


Columns = dict[str, str]


def _number(columns: Columns) -> float:
    """The year; a value that no comparison meets where it is none."""
    return float(columns["year"]) if columns.get("year") else float("nan")


_TESTS: dict[str, Callable[[str, Columns], bool]] = {
    "year >= 3": lambda _, row: _number(row) >= 3,
    "year = 3": lambda _, row: _number(row) == 3,
    "year != '3'": lambda _, row: row.get("year") != "3",
    "brand < 'b'": lambda _, row: "brand" in row and row["brand"] < "b",
    "brand contains b": lambda _, row: "b" in row.get("brand", ""),
    "path = 'a'": lambda path, _: path == "a",
    "path > 1": lambda *_: False,
    "year = ' 3'": lambda _, row: row.get("year") == " 3",
    "not year < 2.5": lambda _, row: not _number(row) < 2.5,
    "year in (1, 3)": lambda _, row: _number(row) in (1, 3),
}


@given(
    st.lists(st.sampled_from(list(_TESTS)), min_size=1, max_size=3),
    st.sampled_from(["and", "or"]),
    st.dictionaries(st.just("year"), st.sampled_from(["", "1", "3", " 3", "3.0"])),
    st.dictionaries(st.just("brand"), st.sampled_from(["", "1", "ab", "b"])),
    st.sampled_from(["a", "b/c", "3"]),
)
def test_a_row_meets_a_filter_as_it_is_read(
    tests: list[str], word: str, year: Columns, brand: Columns, path: str
) -> None:
    condition = parse_where(f" {word} ".join(tests), COLUMNS)
    assert condition is not None
    wanted = {"and": all, "or": any}[word](_TESTS[one](path, year | brand) for one in tests)
    assert meets(condition, path, year | brand) == wanted


@pytest.mark.parametrize(
    ("text", "number"),
    [("12", 12.0), (" -3.5 ", -3.5), ("1e3", 1000.0), ("nan", None), ("1_000", None), ("", None)],
)
def test_which_csv_values_are_numbers(text: str, number: float | None) -> None:
    assert number_of(text) == number


def test_a_list_as_long_as_a_filter_may_be_is_no_damaged_store() -> None:
    numbers = ",".join(["1"] * 995 + ["7"])
    condition = parse_where(f"y in ({numbers})", ["y"])
    assert condition is not None
    assert [meets(condition, "a", {"y": value}) for value in ("7", "8")] == [True, False]
