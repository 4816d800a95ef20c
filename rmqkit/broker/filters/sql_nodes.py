"""SQL92 expressions as closures: each part of an expression becomes a function of the properties.

Logic has three values: None stands for null. The type of a part's value is known when its node is
built (`SqlNode.kind`). So the conversions between Java's types are chosen then, not for each
message.

The checks while building are upstream's too: `<` accepts no text or boolean literal, `=` no NULL,
BETWEEN no empty range, and IN only a property. Odd rules of upstream are kept, since an expression
must mean the same on both brokers:

- `a = b` is null if a is missing, and false if only b is missing. Two missing properties are equal.
- NOT binds tighter than `=`: `NOT a = 1` compares `NOT a`.
- CONTAINS, STARTSWITH and ENDSWITH are false for a missing property and for the search text '',
  with NOT too.
- A property alone is never true, whatever its value.

AND and OR of many parts become one function. Nesting and number of conditions are limited, since
evaluation recurses as deep as the expression is nested, and a pull evaluates it for hundreds of
messages.

Source: `filter/.../expression/{ComparisonExpression,LogicExpression}.java`,
`filter/.../expression/{UnaryExpression,ConstantExpression}.java`.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rmqkit.broker.filters.contract import FilterError, Properties
from rmqkit.broker.filters.sql_values import (
    INT_MAX,
    INT_MIN,
    LONG_MAX,
    NUMBERS,
    ValueKind,
    compare_texts,
    comparer,
    int_of,
    long_of,
)

#: limits of one expression: nesting depth, and number of conditions
DEPTH_MAX = 100
CONDITIONS_MAX = 400

Evaluate = Callable[[Properties], Any]


class SqlNode(NamedTuple):
    """A part of an expression: the type of its value, and the function that evaluates it."""

    kind: ValueKind
    evaluate: Evaluate
    #: whether it is a literal, and its value. As upstream, a negated literal is not a literal
    is_literal: bool = False
    value: Any = None
    #: the property's name; "" if it is not a property alone
    name: str = ""
    depth: int = 1
    conditions: int = 0

    @property
    def shown(self) -> str:
        """How error messages show the node."""
        if self.name:
            return self.name
        if self.is_literal:
            value = self.value
            if value is None or isinstance(value, bool):
                return str(value).upper().replace("NONE", "NULL")
            return f"'{_short(value)}'" if isinstance(value, str) else str(value)
        return "a condition"


def _made(kind: ValueKind, evaluate: Evaluate, *parts: SqlNode) -> SqlNode:
    """Return a node over `parts`. Raises FilterError if it exceeds a limit."""
    depth = 1 + max(part.depth for part in parts)
    count = 1 + sum(part.conditions for part in parts)
    if depth > DEPTH_MAX:
        raise FilterError(f"it is nested more than {DEPTH_MAX} levels deep")
    if count > CONDITIONS_MAX:
        raise FilterError(f"it has more than {CONDITIONS_MAX} conditions; IN takes many values at once")
    return SqlNode(kind, evaluate, depth=depth, conditions=count)


# --- literals and properties


def literal(kind: ValueKind, value: Any) -> SqlNode:
    return SqlNode(kind, lambda _: value, is_literal=True, value=value)


TRUE = literal(ValueKind.BOOLEAN, True)
FALSE = literal(ValueKind.BOOLEAN, False)
NULL = literal(ValueKind.BOOLEAN, None)


def whole_number(text: str) -> SqlNode:
    """Return a literal: an int if the number fits, else a long. Raises FilterError."""
    number = int(text.rstrip("lL")) if len(text) < 32 else LONG_MAX + 1
    if number > LONG_MAX:
        raise FilterError(f"the number {_short(text)} is greater than {LONG_MAX}")
    return literal(ValueKind.INT if INT_MIN <= number <= INT_MAX else ValueKind.LONG, number)


def float_number(text: str) -> SqlNode:
    """Return a double literal. Raises FilterError outside upstream's bounds.

    These are Double.MIN_VALUE and MAX_VALUE, which exclude 0.0.
    """
    number = float(text)
    if number == float("inf"):
        raise FilterError(f"the number {_short(text)} is greater than the greatest double")
    if number == 0:
        raise FilterError(f"the number {_short(text)} is less than the least double above 0; write 0")
    return literal(ValueKind.DOUBLE, number)


def text(value: str) -> SqlNode:
    return literal(ValueKind.TEXT, value)


def variable(name: str) -> SqlNode:
    """Return the value of a property; null if the message lacks it."""
    return SqlNode(ValueKind.TEXT, lambda properties: properties.get(name), name=name)


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:40]}…"


# --- logic


def as_boolean(node: SqlNode) -> SqlNode:
    """Return a node that is used as a condition. Raises FilterError if it cannot be one."""
    if node.kind is ValueKind.BOOLEAN:
        return node
    if node.name:
        name = node.name
        return _made(ValueKind.BOOLEAN, lambda properties: None if properties.get(name) is None else False, node)
    raise FilterError(f"{node.shown if node.is_literal else 'a number'} is not a condition")


def any_of(nodes: Sequence[SqlNode]) -> SqlNode:
    """Return OR of conditions."""
    parts = [as_boolean(node) for node in nodes]
    functions = tuple(part.evaluate for part in parts)

    def evaluate(properties: Properties) -> bool | None:
        result: bool | None = False
        for function in functions:
            value = function(properties)
            if value:
                return True
            if value is None:
                result = None
        return result

    return _made(ValueKind.BOOLEAN, evaluate, *parts)


def all_of(nodes: Sequence[SqlNode]) -> SqlNode:
    """Return AND of conditions."""
    parts = [as_boolean(node) for node in nodes]
    functions = tuple(part.evaluate for part in parts)

    def evaluate(properties: Properties) -> bool | None:
        result: bool | None = True
        for function in functions:
            value = function(properties)
            if value is None:
                result = None
            elif not value:
                return False
        return result

    return _made(ValueKind.BOOLEAN, evaluate, *parts)


def negated(node: SqlNode) -> SqlNode:
    """Return NOT of a condition."""
    part = as_boolean(node)
    inner = part.evaluate

    def evaluate(properties: Properties) -> bool | None:
        value = inner(properties)
        return None if value is None else not value

    return _made(ValueKind.BOOLEAN, evaluate, part)


def minus(node: SqlNode) -> SqlNode:
    """Return the negative of a number; of anything else it is null."""
    if node.kind not in NUMBERS:
        return _made(ValueKind.NOTHING, lambda _: None, node)
    value = -node.evaluate({})
    return _made(node.kind, lambda _: value, node)


# --- comparisons


def equal(left: SqlNode, right: SqlNode) -> SqlNode:
    """Return `=`. Raises FilterError for NULL, and for TRUE or FALSE before any other literal."""
    for each in (left, right):
        if each.is_literal and each.value is None:
            raise FilterError("NULL cannot be compared; use IS NULL")
    if left.is_literal and right.is_literal and left.kind is ValueKind.BOOLEAN and right.kind is not ValueKind.BOOLEAN:
        raise FilterError(f"{left.shown} cannot be compared with {right.shown}")
    return _equal(left, right)


def not_equal(left: SqlNode, right: SqlNode) -> SqlNode:
    return negated(equal(left, right))


def is_null(node: SqlNode) -> SqlNode:
    inner = node.evaluate
    return _made(ValueKind.BOOLEAN, lambda properties: inner(properties) is None, node)


def is_not_null(node: SqlNode) -> SqlNode:
    inner = node.evaluate
    return _made(ValueKind.BOOLEAN, lambda properties: inner(properties) is not None, node)


def _equal(left: SqlNode, right: SqlNode) -> SqlNode:
    one, other = left.evaluate, right.evaluate
    compare = comparer(left.kind, right.kind)
    if left.name and right.is_literal and right.kind is ValueKind.TEXT:
        name, wanted = left.name, right.value

        def is_text(properties: Properties) -> bool | None:
            value = properties.get(name)
            return None if value is None else value == wanted

        return _made(ValueKind.BOOLEAN, is_text, left, right)

    def evaluate(properties: Properties) -> bool | None:
        left_value, right_value = one(properties), other(properties)
        if left_value is None:
            return True if right_value is None else None
        return right_value is not None and compare(left_value, right_value) == 0

    return _made(ValueKind.BOOLEAN, evaluate, left, right)


Order = Callable[[Any, Any], bool]
LESS, AT_MOST, GREATER, AT_LEAST = operator.lt, operator.le, operator.gt, operator.ge


def ordered(order: Order, left: SqlNode, right: SqlNode) -> SqlNode:
    """Return `<`, `<=`, `>` or `>=`. Raises FilterError for an operand that is never a number."""
    for each in (left, right):
        if each.kind is ValueKind.BOOLEAN or (each.is_literal and each.kind is ValueKind.TEXT):
            raise FilterError(f"{each.shown} cannot be compared by <, >, <=, >= or BETWEEN")
    one, other = left.evaluate, right.evaluate
    if left.name and right.kind in (ValueKind.INT, ValueKind.LONG):
        name, bound = left.name, right.evaluate({})
        number_of = int_of if right.kind is ValueKind.INT else long_of

        def by_number(properties: Properties) -> bool | None:
            value = properties.get(name)
            return None if value is None else order(number_of(value), bound)

        return _made(ValueKind.BOOLEAN, by_number, left, right)
    compare = compare_texts if left.kind is right.kind is ValueKind.TEXT else comparer(left.kind, right.kind)

    def evaluate(properties: Properties) -> bool | None:
        left_value = one(properties)
        if left_value is None:
            return None
        right_value = other(properties)
        return None if right_value is None else order(compare(left_value, right_value), 0)

    return _made(ValueKind.BOOLEAN, evaluate, left, right)


def between(node: SqlNode, low: SqlNode, high: SqlNode) -> SqlNode:
    """Return BETWEEN, both bounds included. Raises FilterError for NULL and for an empty range."""
    if low.is_literal and high.is_literal:
        if low.value is None or high.value is None:
            raise FilterError("NULL cannot be a bound of BETWEEN")
        if low.kind in NUMBERS and high.kind in NUMBERS and comparer(high.kind, low.kind)(high.value, low.value) < 0:
            raise FilterError(f"BETWEEN {low.shown} AND {high.shown} is an empty range; the lower bound comes first")
    return all_of((ordered(AT_LEAST, node, low), ordered(AT_MOST, node, high)))


def not_between(node: SqlNode, low: SqlNode, high: SqlNode) -> SqlNode:
    return any_of((ordered(LESS, node, low), ordered(GREATER, node, high)))


def one_of(node: SqlNode, values: Sequence[str], *, wanted: bool) -> SqlNode:
    """Return IN, or NOT IN if not `wanted`. Raises FilterError if the node is not a property."""
    if not node.name:
        raise FilterError(f"IN needs a property on its left side, not {node.shown}")
    name, among = node.name, frozenset(values)

    def evaluate(properties: Properties) -> bool | None:
        value = properties.get(name)
        return None if value is None else (value in among) is wanted

    return _made(ValueKind.BOOLEAN, evaluate, node)


TextTest = Callable[[str, str], bool]


def holds(test: TextTest, node: SqlNode, sought: str, *, wanted: bool) -> SqlNode:
    """Return CONTAINS, STARTSWITH or ENDSWITH, or the form with NOT if not `wanted`."""
    if not sought or node.kind is not ValueKind.TEXT:
        return _made(ValueKind.BOOLEAN, lambda _: False, node)
    inner = node.evaluate

    def evaluate(properties: Properties) -> bool:
        value = inner(properties)
        return value is not None and test(value, sought) is wanted

    return _made(ValueKind.BOOLEAN, evaluate, node)


CONTAINS: TextTest = operator.contains
STARTSWITH: TextTest = str.startswith
ENDSWITH: TextTest = str.endswith
