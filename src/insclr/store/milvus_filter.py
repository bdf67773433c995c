"""Conditions on columns in Milvus' filter language."""

import json

from insclr.store.where import Compare, Condition, Contains, Every, Not


def contains_text(where: Condition) -> bool:
    """Whether a condition looks for a text anywhere in a value, which Milvus can from version 2.4 on."""
    if isinstance(where, Compare):
        return False
    if isinstance(where, Contains):
        return True
    return any(map(contains_text, (where.condition,) if isinstance(where, Not) else where.conditions))


def to_expression(where: Condition) -> str:
    """A condition in Milvus' filter language; every name and value goes through JSON quoting.

    Milvus cannot quote % and _ in a pattern: `contains` takes them for "anything" and "any letter" here.
    """
    if isinstance(where, Compare):
        number = isinstance(where.value, float)
        if where.column == "path" and number:
            return "id < 0"
        sign = "==" if where.sign == "=" else where.sign
        return _present("numbers" if number else "columns", where.column, f"{sign} {json.dumps(where.value)}")
    if isinstance(where, Contains):
        return _present("columns", where.column, f"like {json.dumps(f'%{where.text}%')}")
    if isinstance(where, Not):
        return f"not ({to_expression(where.condition)})"
    joint = " and " if isinstance(where, Every) else " or "
    return joint.join(f"({to_expression(one)})" for one in where.conditions)


def _present(source: str, name: str, test: str) -> str:
    if name == "path":
        return f"path {test}"
    # Without `exists` a missing value makes the test neither true nor false, and `not` of that is not true.
    column = f"{source}[{json.dumps(name)}]"
    return f"((exists {column}) and ({column} {test}))"
