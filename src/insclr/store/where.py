"""The filter language of `--where`: comparisons of columns joined by and, or, not and brackets.

    year >= 2015 and (brand = 'acme' or brand in ('foo', 'bar')) and not path contains 'test'

A number on the right compares numbers, anything else compares text exactly as the CSV has it. A row without a
value never meets a comparison. The text is parsed into a tree. `meets` tries it on a row; Milvus gets it in its own
language with every value quoted: nothing that a client writes is ever executed.
"""

import json
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from insclr.errors import UserError

_MAX_LENGTH = 2000
_MAX_DEPTH = 30
_COMPARISONS = ("=", "!=", "<", "<=", ">", ">=")
_SIGNS: dict[str, Callable[[Any, Any], bool]] = {
    **{"=": operator.eq, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge},
    "contains": operator.contains,
}
_TOKEN = re.compile(
    r"""\s*(?:
      (?P<number>[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w.]))
    | (?P<text>'(?:[^']|'')*' | "(?:[^"]|"")*")
    | (?P<sign><=|>=|!=|==|=|<|>|\(|\)|,)
    | (?P<word>[^\s'"<>=!(),]+)
    )""",
    re.VERBOSE | re.ASCII,
)


@dataclass(frozen=True)
class Compare:
    """`column sign value`, the sign being = < <= > >= or contains (case matters)."""

    column: str
    sign: str
    value: str | float


@dataclass(frozen=True)
class Not:
    """The condition is not met."""

    condition: "Condition"


@dataclass(frozen=True)
class Joined:
    """All conditions are met ("and"), or at least one ("or")."""

    word: str
    conditions: tuple["Condition", ...]


Condition = Compare | Not | Joined


def parse_where(text: str, columns: Sequence[str]) -> Condition | None:
    """The tree of a filter text, None for a blank one; UserError for what cannot be understood.

    `columns` are the names the store knows besides `path`.
    """
    if not text.strip():
        return None
    if len(text) > _MAX_LENGTH:
        raise UserError(f"the filter has {len(text)} characters: {_MAX_LENGTH} are allowed")
    parser = _Parser(text, ("path", *columns))
    condition = parser.parse_chain(0)
    parser.expect_end()
    return condition


class _Token(NamedTuple):
    kind: str
    value: str  # without its quotes
    start: int
    end: int


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    at = 0
    text = text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise UserError(_not_understood(text, at))
        kind = match.lastgroup or ""
        value = match[kind]
        if kind == "text":
            value = value[1:-1].replace(value[0] * 2, value[0])
        tokens.append(_Token(kind, value, match.start(kind), match.end()))
        at = match.end()
    return tokens


def _not_understood(text: str, at: int) -> str:
    rest = text[at:].strip()
    if at and text[at] == "'":  # no space before it: part of a word
        return f"quote it: a value with ' in it is written in double quotes, like \"O'Neill\" (here: {rest[:40]!r})"
    if rest[0] in "'\"":
        return f"a quote is left open in the filter: {rest[:40]!r} needs a second {rest[0]} at its end"
    return f"the filter is not understood from here: {rest[:40]!r}"


class _Parser:
    """Recursive descent, one method a rule.

    chain := all (or all)*; all := one (and one)*; one := not one | ( chain ) | comparison
    """

    def __init__(self, text: str, columns: tuple[str, ...]) -> None:
        self.text = text
        self.tokens = _tokens(text)
        self.columns = columns
        self.at = 0
        self.in_list = False

    def parse_chain(self, depth: int, word: str = "or") -> Condition:
        rule = partial(self.parse_chain, word="and") if word == "or" else self.one
        parts = [rule(depth)]
        while self.skip("word", word):
            parts.append(rule(depth))
        return parts[0] if len(parts) == 1 else Joined(word, tuple(parts))

    def one(self, depth: int) -> Condition:
        if depth > _MAX_DEPTH:
            raise UserError(f"the filter is nested deeper than {_MAX_DEPTH} levels")
        if self.skip("word", "not"):
            return Not(self.one(depth + 1))
        if self.skip("sign", "("):
            inner = self.parse_chain(depth + 1)
            self.need_sign(")")
            return inner
        return self.comparison()

    def comparison(self) -> Condition:
        column = self.column()
        if self.skip("word", "in"):
            return self.membership(column)
        if self.skip("word", "contains"):
            return Compare(column, "contains", self.value("a text")[1])
        kind, sign, *_ = self.next("a comparison such as = or >=")
        sign = "=" if sign == "==" else sign
        if kind != "sign" or sign not in _COMPARISONS:
            raise UserError(
                f"after column {column!r} {' '.join(_COMPARISONS)} in or contains is expected, not {sign!r}"
            )
        value = self.number_or_text()
        return Not(Compare(column, "=", value)) if sign == "!=" else Compare(column, sign, value)

    def membership(self, column: str) -> Condition:
        self.need_sign("(")
        self.in_list = True
        parts = [Compare(column, "=", self.number_or_text())]
        while self.skip("sign", ","):
            parts.append(Compare(column, "=", self.number_or_text()))
        self.in_list = False
        self.need_sign(")")
        return Joined("or", tuple(parts))

    def column(self) -> str:
        kind, name, start, _ = self.next("a column name")
        if kind not in ("word", "text", "number"):
            raise UserError(f"a column name is expected in the filter where {name!r} stands")
        if name not in self.columns:
            for column in self.columns:
                if self.text.startswith(column, start):
                    raise UserError(f"quote it: write the column as {_quote(column)}")
            raise UserError(f"no column {name!r} in this store; it has: {', '.join(self.columns)}")
        return name

    def number_or_text(self) -> str | float:
        kind, value = self.value("a value")
        if kind == "number" and not math.isfinite(float(value)):
            raise UserError(f"the number {value} in the filter is too large")
        return float(value) if kind == "number" else value

    def value(self, expected: str) -> tuple[str, str]:
        kind, value, *_ = self.next(expected)
        if kind == "sign":
            raise UserError(f"{expected} is expected in the filter where {value!r} stands")
        self.refuse_rest_of_value()
        return kind, value

    def refuse_rest_of_value(self) -> None:
        """Ask for quotes where an unquoted value goes on behind a space or sign: room = Reading room."""
        first, end = self.tokens[self.at - 1], self.at
        if first.kind == "text":
            return
        stops = ",)" if self.in_list else ")"
        depth = 0  # of brackets inside the value
        while end < len(self.tokens):
            kind, word, *_ = self.tokens[end]
            if kind == "sign" and word in (*_COMPARISONS, "=="):
                return  # another comparison: a missing "and", not a missing quote
            joins = kind == "word" and word.lower() in ("and", "or")
            if joins or (kind == "sign" and word in stops and not depth):
                break
            depth += {"(": 1, ")": -1}.get(word, 0)
            end += 1
        if end == self.at:
            return
        raw = self.text[first.start : self.tokens[end - 1].end]
        raise UserError(f"quote it: write {_quote(raw)} instead of {raw} in the filter")

    def next(self, expected: str) -> _Token:
        if self.at == len(self.tokens):
            raise UserError(f"the filter ends where {expected} is expected")
        self.at += 1
        return self.tokens[self.at - 1]

    def need_sign(self, sign: str) -> None:
        if not self.skip("sign", sign):
            raise UserError(f"{sign!r} is expected in the filter {self._place()}")

    def expect_end(self) -> None:
        if self.at != len(self.tokens):
            raise UserError(f"'and' or 'or' is expected in the filter {self._place()}")

    def skip(self, kind: str, value: str) -> bool:
        here = self.tokens[self.at] if self.at < len(self.tokens) else None
        if here is not None and here.kind == kind and here.value.lower() == value:
            self.at += 1
            return True
        return False

    def _place(self) -> str:
        return f"where {self.tokens[self.at].value!r} stands" if self.at < len(self.tokens) else "at its end"


def _quote(text: str) -> str:
    quote = '"' if "'" in text else "'"
    return quote + text.replace(quote, quote * 2) + quote


def to_milvus(where: Condition) -> str:
    """A condition in Milvus' filter language; every name and value goes through JSON quoting.

    Milvus cannot quote % and _ in a pattern: `contains` reads them as "anything" and "any letter" here.
    """
    if isinstance(where, Not):
        return f"not ({to_milvus(where.condition)})"
    if isinstance(where, Joined):
        return f" {where.word} ".join(f"({to_milvus(one)})" for one in where.conditions)
    sign, value = {"=": "==", "contains": "like"}.get(where.sign, where.sign), where.value
    test = f"{sign} {json.dumps(f'%{value}%' if sign == 'like' else value)}"
    source = "numbers" if isinstance(value, float) else "columns"
    if where.column == "path":
        return "id < 0" if source == "numbers" else f"path {test}"
    # Without `exists` a missing value makes the test neither true nor false, and `not` of that is not true.
    column = f"{source}[{json.dumps(where.column)}]"
    return f"((exists {column}) and ({column} {test}))"


def meets(where: Condition, path: str, columns: Mapping[str, str]) -> bool:
    """Whether a row of this path and these columns meets a condition."""
    if isinstance(where, Not):
        return not meets(where.condition, path, columns)
    if isinstance(where, Joined):
        return (all if where.word == "and" else any)(meets(one, path, columns) for one in where.conditions)
    text = path if where.column == "path" else columns.get(where.column)
    if text is None:
        return False
    here = number_of(text) if isinstance(where.value, float) and where.column != "path" else text
    if here is None or isinstance(here, str) is not isinstance(where.value, str):
        return False
    return _SIGNS[where.sign](here, where.value)


def has_contains(where: Condition) -> bool:
    """Whether a condition searches a text inside of values, which Milvus can from version 2.4 on."""
    if isinstance(where, Not):
        return has_contains(where.condition)
    return any(map(has_contains, where.conditions)) if isinstance(where, Joined) else where.sign == "contains"


def number_of(text: str) -> float | None:
    """The number a CSV value spells, None when it is not one (or not finite)."""
    if not re.fullmatch(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d{1,3})?\s*", text, re.ASCII):
        return None
    number = float(text)
    return number if math.isfinite(number) else None


def numbers_of(columns: Mapping[str, str]) -> dict[str, float]:
    """The columns whose values are numbers."""
    return {name: number for name, text in columns.items() if (number := number_of(text)) is not None}
