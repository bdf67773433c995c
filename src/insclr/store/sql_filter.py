"""Conditions on columns as SQL of the local store."""

from collections.abc import Sequence

from insclr.store.where import Compare, Condition, Contains, Every, Not


def to_sql(where: Condition) -> tuple[str, list[object]]:
    """A condition as SQL with its values apart: every name and value is a parameter."""
    if isinstance(where, Compare):
        number = isinstance(where.value, float)
        source, values = _column("numbers" if number else "columns", where.column)
        if where.column == "path" and number:
            return "0", []
        return f"COALESCE({source} {where.sign} ?, 0)", [*values, where.value]
    if isinstance(where, Contains):
        source, values = _column("columns", where.column)
        return f"COALESCE(instr({source}, ?) > 0, 0)", [*values, where.text]
    if isinstance(where, Not):
        inner, values = to_sql(where.condition)
        return f"NOT ({inner})", values
    parts = [to_sql(one) for one in where.conditions]
    joint = "AND" if isinstance(where, Every) else "OR"
    return _join([text for text, _ in parts], joint), [value for _, values in parts for value in values]


def _join(parts: Sequence[str], joint: str) -> str:
    """The parts joined in pairs of halves: SQLite takes expressions 1,000 levels deep, and a chain is one a part."""
    if len(parts) == 1:
        return f"({parts[0]})"
    half = len(parts) // 2
    return f"({_join(parts[:half], joint)} {joint} {_join(parts[half:], joint)})"


def _column(source: str, name: str) -> tuple[str, list[object]]:
    if name == "path":
        return "path", []
    return f"(SELECT value FROM json_each({source}) WHERE key = ?)", [name]
