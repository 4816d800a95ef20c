"""Values of SQL92 with Java's semantics.

Properties are text, literals have a type, and text is converted to the type of the literal that it
is compared with. Compared with the literal 1, `"1.5"` is not a number (`Integer.valueOf` refuses
it); compared with 1.0 it is. Doubles are ordered like `Double.compareTo`: -0.0 before 0.0, NaN last
and equal to itself.

`NotComparable` stands for the exceptions with which Java ends an evaluation. Then the message is
not wanted, whatever the rest of the expression says.

Source: `filter/.../expression/ComparisonExpression.java` (`__compare`, `evaluate`);
`java.lang.Integer.parseInt`, `java.lang.Double.valueOf`.
"""

import re
from collections.abc import Callable
from enum import Enum
from math import copysign, isnan
from typing import Any

INT_MIN, INT_MAX = -(1 << 31), (1 << 31) - 1
LONG_MIN, LONG_MAX = -(1 << 63), (1 << 63) - 1
#: limit of digits, as Python's int() has one too; no longer number fits a long, leading zeros aside
_DIGITS_MAX = 64

_DOUBLE = re.compile(r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?")
_HEX_DOUBLE = re.compile(r"[+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+[fFdD]?")
_NAMED_DOUBLE = {"NaN": float("nan"), "Infinity": float("inf")}


class ValueKind(Enum):
    """Type of the value of a part of an expression, if it is not null."""

    TEXT = "text"
    INT = "int"
    LONG = "long"
    DOUBLE = "double"
    BOOLEAN = "boolean"
    #: always null
    NOTHING = "nothing"


NUMBERS = (ValueKind.INT, ValueKind.LONG, ValueKind.DOUBLE)


class NotComparable(Exception):
    """The values cannot be compared."""


def int_of(text: str) -> int:
    """Convert like `Integer.valueOf`: a sign, digits, no blanks. Raises Unfit."""
    number = _whole(text)
    if not INT_MIN <= number <= INT_MAX:
        raise NotComparable(text)
    return number


def long_of(text: str) -> int:
    """Convert like `Long.valueOf`. Raises Unfit."""
    number = _whole(text)
    if not LONG_MIN <= number <= LONG_MAX:
        raise NotComparable(text)
    return number


def _whole(text: str) -> int:
    digits = text[1:] if text[:1] in ("+", "-") else text
    # Like Character.digit, isdecimal accepts decimal digits of any script.
    if not digits.isdecimal() or len(digits) > _DIGITS_MAX:
        raise NotComparable(text)
    return int(text)


def double_of(text: str) -> float:
    """Convert like `Double.valueOf`. Raises Unfit.

    Surrounding blanks, a suffix f or d, hexadecimal numbers, NaN and Infinity are valid.
    """
    text = text.strip("".join(map(chr, range(33))))
    if _DOUBLE.fullmatch(text):
        return float(text.rstrip("fFdD"))
    sign, name = (text[0], text[1:]) if text[:1] in ("+", "-") else ("", text)
    named = _NAMED_DOUBLE.get(name)
    if named is not None:
        return -named if sign == "-" else named
    if _HEX_DOUBLE.fullmatch(text):
        mantissa, power = re.split("[pP]", text)
        try:
            return float.fromhex(f"{mantissa}p{power.rstrip('fFdD')}")
        except OverflowError:
            return float("-inf" if sign == "-" else "inf")
    raise NotComparable(text)


def boolean_of(text: str) -> bool:
    """Convert like `Boolean.valueOf`: every text but "true", in any case, is false."""
    return text.lower() == "true"


def compare_doubles(left: float, right: float) -> int:
    """Compare like `Double.compareTo`."""
    if left < right:
        return -1
    if left > right:
        return 1
    # Equal, or one of them is NaN.
    left_rank = 2.0 if isnan(left) else copysign(1.0, left)
    right_rank = 2.0 if isnan(right) else copysign(1.0, right)
    return (left_rank > right_rank) - (left_rank < right_rank)


def _compare(left: Any, right: Any) -> int:
    return int(left > right) - int(left < right)


Convert = Callable[[Any], Any]
Compare = Callable[[Any, Any], int]

#: conversion of text that is compared with a literal of the kind
FROM_TEXT: dict[ValueKind, Convert] = {
    ValueKind.INT: int_of,
    ValueKind.LONG: long_of,
    ValueKind.DOUBLE: double_of,
    ValueKind.BOOLEAN: boolean_of,
}


def comparer(left: ValueKind, right: ValueKind) -> Compare:
    """Return a function that compares two values that are not null: below 0, 0 or above 0.

    The function may raise Unfit.
    """
    if left is right:
        return compare_doubles if left is ValueKind.DOUBLE else _compare
    if ValueKind.NOTHING in (left, right):
        return _compare  # never called: one side is null
    if right is ValueKind.TEXT:
        if left is ValueKind.BOOLEAN:
            return _no_cast
        return _converted(None, FROM_TEXT[left], left)
    if left is ValueKind.TEXT:
        return _converted(FROM_TEXT[right], None, right)
    if ValueKind.BOOLEAN in (left, right):
        return lambda _left, _right: -1
    if ValueKind.DOUBLE in (left, right):
        return lambda one, other: compare_doubles(float(one), float(other))
    return _compare


def _converted(of_left: Convert | None, of_right: Convert | None, kind: ValueKind) -> Compare:
    compare: Compare = compare_doubles if kind is ValueKind.DOUBLE else _compare
    if of_left is not None:
        return lambda left, right: compare(of_left(left), right)
    assert of_right is not None
    return lambda left, right: compare(left, of_right(right))


def _no_cast(left: Any, right: Any) -> int:
    """Compare as in `TRUE = a`: upstream casts the wrong side and fails."""
    raise NotComparable(right)


def compare_texts(left: str, right: str) -> int:
    """Compare two texts for `<`, `>`, `<=` or `>=`. Raises Unfit unless both are numbers."""
    return compare_doubles(double_of(left), double_of(right))
