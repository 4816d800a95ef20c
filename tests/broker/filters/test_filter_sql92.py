"""SQL92 expressions: their meaning, which are refused, and their limits.

The cases follow `filter/src/test/.../{ExpressionTest,ParserTest}.java` and the rules of
`ComparisonExpression.java`, `LogicExpression.java`, `UnaryExpression.java`.

The property test builds an expression as a tree and writes it as text. It compares the result of
the compiled text with a plain evaluation of the tree.
"""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqkit.broker.filters import sql92
from rmqkit.broker.filters.contract import FilterError
from rmqkit.broker.filters.sql_nodes import CONDITIONS_MAX, DEPTH_MAX
from rmqkit.broker.filters.sql_values import NotComparable, compare_doubles, double_of, int_of, long_of


def matches(expression, **properties):
    found = sql92.Sql92Filter().compile(expression)
    assert found.match_tags is None
    assert found.match_properties is not None
    return found.match_properties(properties)


def outcome(expression):
    """Return the result of an expression, or its error, as text."""
    try:
        return str(matches(expression, a="1"))
    except FilterError as error:
        return str(error)


FOUR = "a=3 and b<>4 And c>5 AND d<=4"
ANY = "a=3 or b<>4 Or c>5 OR d<=4"


@pytest.mark.parametrize(
    ("expression", "properties", "wanted"),
    [
        (FOUR, {"a": "3", "b": "5", "c": "6", "d": "1"}, True),
        (FOUR, {"a": "4", "b": "5", "c": "6", "d": "1"}, False),
        (ANY, {"a": "3"}, True),
        (ANY, {"a": "4", "b": "5"}, True),
        (ANY, {"a": "4", "b": "4", "c": "3", "d": "10"}, False),
        ("a in ('3', '4', '5')", {"a": "4"}, True),
        ("a in ('3', '4', '5')", {"a": "8"}, False),
        ("a in ('3')", {}, False),
        ("a not in ('3', '4', '5')", {"a": "8"}, True),
        ("a not in ('3')", {}, False),
        ("NOT (a in ('3'))", {}, False),
        ("a between 2 and 10", {"a": "2"}, True),
        ("a between 2 and 10", {"a": "11"}, False),
        ("a not between 2 and 10", {"a": "11"}, True),
        ("a between b and c", {"a": "2", "b": "1", "c": "3"}, True),
        ("3 between a and 5", {"a": "1"}, True),
        ("a is null", {}, True),
        ("a is null", {"a": "x"}, False),
        ("a is not null", {"a": "x"}, True),
        ("a is null OR a='hello'", {"a": "abc"}, False),
        ("a is not null and a='hello'", {"a": "hello"}, True),
        # strings compare exactly: equal numbers in different notation differ; a quote is doubled
        ("a='''''tag'''''", {"a": "''tag''"}, True),
        ("a = ''", {"a": "x"}, False),
        ("a = b", {"a": "3.14", "b": "3.14"}, True),
        ("a = b", {"a": "3.14", "b": "3.140"}, False),
        ("a <> b", {"a": "3.14", "b": "3.141"}, True),
        # missing properties (LogicExpression, doCreateEqual)
        ("a = b", {}, True),
        ("a = b", {"a": "1"}, False),
        ("a <> b", {"a": "1"}, True),
        ("a <> b", {"b": "1"}, False),
        ("a > 1 or b = 'x'", {"b": "x"}, True),
        ("not (a > 1)", {}, False),
        ("a = 1 and b = 2 or c = 3", {"c": "3"}, True),
        # the property's text is converted to the type of the literal
        ("a > 1", {"a": "1.5"}, False),
        ("a > 1.0", {"a": "1.5"}, True),
        ("a = 3", {"a": "+3"}, True),
        ("a = 3", {"a": " 3"}, False),
        ("a = 3.0", {"a": " 3 "}, True),
        ("a = 3", {"a": "3000000000"}, False),
        ("a < 3000000001", {"a": "3000000000"}, True),
        ("a = 3L", {"a": "3"}, True),
        ("a > 3.1E10", {"a": "3.1415E10"}, True),
        ("a > .5", {"a": "0.6"}, True),
        ("a >= 5.", {"a": "5"}, True),
        ("a = -3", {"a": "-3"}, True),
        ("a > --3", {"a": "4"}, True),
        ("a = +3", {"a": "3"}, True),
        ("a > -1.5", {"a": "-1"}, True),
        ("a = 1.0", {"a": "0x1p0"}, True),
        ("a = 1.0", {"a": "1d"}, True),
        ("a > 1.0", {"a": "NaN"}, True),
        ("a > b", {"a": "10", "b": "9"}, True),
        ("a > b", {"a": "10", "b": "x"}, False),
        ("2 > 1", {}, True),
        ("2.0 = 2", {}, True),
        ("3000000000 > 2", {}, True),
        ("1 = '1'", {}, True),
        ("'x' = 'x'", {}, True),
        # where Java throws, the evaluation ends with False, even if an OR could still be true
        ("a > 1 or b = 'x'", {"a": "no", "b": "x"}, False),
        ("b = 'x' or a > 1", {"a": "no", "b": "x"}, True),
        ("not (a > 1)", {"a": "no"}, False),
        # booleans
        ("a=TRUE OR b=FALSE", {"a": "true", "b": "false"}, True),
        ("a=TRUE OR b=FALSE", {"a": "false", "b": "true"}, False),
        ("a = true", {"a": "TRUE"}, True),
        ("a = false", {"a": "anything"}, True),
        ("TRUE = a", {"a": "true"}, False),
        ("1 = TRUE", {}, False),
        ("a = 1 = TRUE", {"a": "1"}, True),
        ("TRUE", {}, True),
        ("FALSE", {}, False),
        ("NULL", {}, False),
        ("NOT FALSE", {}, True),
        ("a", {"a": "true"}, False),
        ("NOT a", {"a": "true"}, True),
        ("NOT a", {}, False),
        # NOT binds tighter than =
        ("NOT a = 1", {"a": "2"}, False),
        ("NOT (a = 1)", {"a": "2"}, True),
        # minus a non-number is null
        ("-a = b", {"b": "1"}, False),
        ("-a IS NULL", {"a": "1"}, True),
        ("a > -'x'", {"a": "1"}, False),
        # CONTAINS, STARTSWITH, ENDSWITH
        ("v contains 'x'", {"v": "axb"}, True),
        ("v STARTSWITH 'ax' and v endswith 'xb'", {"v": "axb"}, True),
        ("v not contains 'x'", {"v": "axb"}, False),
        ("v not startswith 'x' and v not endswith 'x'", {"v": "abb"}, True),
        ("v contains ''", {"v": "axb"}, False),
        ("v not contains ''", {"v": "axb"}, False),
        ("v contains 'x'", {}, False),
        ("v not contains 'x'", {}, False),
        ("'axb' contains 'x'", {}, True),
        ("'axb' contains '.'", {}, False),
        ("1 not contains 'x'", {}, False),
        ("a not in ('4', '5') and b between 3 and 10 and c not contains 'axbc'", {"a": "3", "b": "3", "c": "axbdc"}, True),
        # names, white space, comments
        ("$a_1=1", {"$a_1": "1"}, True),
        ("A = 1", {"a": "1"}, False),
        ("android=1", {"android": "1"}, True),
        ("in1 = 1 AND nota = 2", {"in1": "1", "nota": "2"}, True),
        ("a\t>\n1", {"a": "2"}, True),
        ("a > 1AND b = 'x'", {"a": "2", "b": "x"}, True),
        ("a > 1 -- more\n and b = 'x'", {"a": "2", "b": "y"}, False),
        ("a > 1 -- and b = 'x'", {"a": "2"}, True),
        ("/* a ** / */ a > 1", {"a": "2"}, True),
        ("a = '--' and b = '/*'", {"a": "--", "b": "/*"}, True),
        ("((((a))) in ('x'))", {"a": "x"}, True),
        ("größe = 1", {}, None),
        ("a = 'größe'", {"a": "größe"}, True),
    ],
)
def test_what_an_expression_means(expression, properties, wanted):
    if wanted is None:
        with pytest.raises(FilterError):
            matches(expression)
    else:
        assert matches(expression, **properties) is wanted


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("", "too early"),
        ("a >", "too early"),
        ("(a > 1", "too early"),
        ("a and between 2 and 10", "column 7: 'between'"),
        ("a and in", "column 7: 'in'"),
        ("a > 1 b", "column 7: 'b'"),
        ("a > 1)", "column 6"),
        ("a > 1;", "column 6"),
        ("a == 1", "column 4"),
        ("a != 1", "<>"),
        ("a = 1 && b = 2", "AND"),
        ("a = 1 || b = 2", "OR"),
        ('a = "x"', "single quotes"),
        ("a = 'x", "no closing quote"),
        ("a LIKE 'x%'", "STARTSWITH"),
        ("a * 2 > 1", "no arithmetic"),
        ("a contains x", "column 12"),
        ("a contains 123", "column 12"),
        ("a contains", "too early"),
        ("a in ()", "column 7"),
        ("a in (1, 2)", "column 7"),
        ("a = 05", "column 6"),
        ("a = 0x10", "column 6"),
        ("a > 'x'", "'x' cannot be compared"),
        ("'x' < a", "'x' cannot be compared"),
        ("a > TRUE", "TRUE cannot be compared"),
        ("a > NULL", "NULL cannot be compared"),
        ("a > 1 > 2", "cannot be compared"),
        ("a = NULL", "IS NULL"),
        ("NULL <> a", "IS NULL"),
        ("TRUE = 1", "TRUE cannot be compared with 1"),
        ("a between 10 and 0", "empty range"),
        ("a between NULL and 0", "bound of BETWEEN"),
        ("a between 'a' and 'b'", "cannot be compared"),
        ("'a' in ('a')", "IN needs a property"),
        ("NOT a in ('a')", "IN needs a property"),
        ("5", "5 is not a condition"),
        ("'x' and a = 1", "'x' is not a condition"),
        ("-a", "a number is not a condition"),
        ("NOT 5", "5 is not a condition"),
        ("a > 100000000000000000000000", "greater than 9223372036854775807"),
        ("a > 9223372036854775808", "greater than"),
        ("a > 1e999", "greatest double"),
        ("a > 0.0", "write 0"),
        ("a = \N{KELVIN SIGN}", "column 5"),
        ("a > 1 \N{NO-BREAK SPACE}", "column 7"),
    ],
)
def test_bad_expressions_are_refused_with_a_reason(expression, said):
    with pytest.raises(FilterError) as told:
        matches(expression)
    assert said in str(told.value)
    assert "\n" not in str(told.value)


def test_the_greatest_literals():
    assert matches("a = 9223372036854775807", a="9223372036854775807")
    assert matches("a = -9223372036854775807", a="-9223372036854775807")
    assert matches("a = 2147483648", a="2147483648")


@pytest.mark.parametrize(
    "expression",
    [
        "(" * 4000 + "a > 1",
        "(" * 4000 + "a > 1" + ")" * 4000,
        "NOT " * 2000 + "a",
        "-" * 8000 + "a = 1",
        "NOT (" * 1200 + "a > 1" + ")" * 1200,
        "(a=1 or " * 900 + "b=1" + ")" * 900,
        "a=1 or " * 1100 + "b=1",
        "a=1=1" + "=1" * 4000,
        "a in (" + "'x'," * 2000,
        "/*" * 4000,
        "--" * 4000,
        "''" * 4000,
        "a = '" + "''" * 4000,
        "1" * 8000,
        "a > " + "1" * 8000 + ".0",
        "a" * 8192,
        "x" * 100_000,
        "a > 1" + " " * 100_000,
    ],
    ids=lambda text: text[:12],
)
def test_hostile_expressions_end_clearly(expression):
    assert len(outcome(expression)) < 300


def test_the_limits_are_where_they_say():
    assert matches("NOT " * (DEPTH_MAX - 3) + "(a = 1)", a="1") in (True, False)
    with pytest.raises(FilterError, match="nested more than"):
        matches("NOT " * DEPTH_MAX + "a", a="1")
    assert matches(" or ".join(["a=1"] * (CONDITIONS_MAX - 1)), a="1")
    with pytest.raises(FilterError, match="conditions; IN takes many"):
        matches(" or ".join(["a=1"] * CONDITIONS_MAX), a="1")
    assert matches("a in (" + ",".join(["'x'"] * 1500) + ",'1')", a="1")


@pytest.mark.parametrize("text", ["", "+", "-", "1_0", "0x1", "1.0", "1e3", " 1", "1 ", "٣x", "²", "2147483648"])
def test_texts_that_are_no_int(text):
    with pytest.raises(NotComparable):
        int_of(text)


def test_texts_that_are_numbers():
    assert int_of("-2147483648") == -(1 << 31)
    assert int_of("٣") == 3, "Character.digit takes digits of any script"
    assert long_of("2147483648") == 1 << 31
    assert double_of("\t1.5e2f\n") == 150
    assert double_of("0x1.8p1") == 3
    assert double_of("-Infinity") == -math.inf
    assert math.isnan(double_of("NaN"))
    for text in ("", "inf", "nan", "infinity", "1_0", "1e", "e1", ".", "0x1", "NaNf", "1,5", "٣"):
        with pytest.raises(NotComparable):
            double_of(text)


def test_doubles_are_ordered_as_java_orders_them():
    in_order = [-math.inf, -1.0, -0.0, 0.0, 1.0, math.inf, math.nan]
    for i, one in enumerate(in_order):
        for k, other in enumerate(in_order):
            assert compare_doubles(one, other) == (i > k) - (i < k)


# --- against a plain evaluation


class Error(Exception):
    pass


NAMES = ("a", "b", "c")
VALUES = ("1", "2", "-1", "1.5", "x", "xy", "true", "", "2147483648")
COMPARISONS = {
    "=": lambda c: c == 0,
    "<": lambda c: c < 0,
    "<=": lambda c: c <= 0,
    ">": lambda c: c > 0,
    ">=": lambda c: c >= 0,
}


def plain_number(literal, text):
    try:
        if isinstance(literal, float):
            return float(text)
        number = int(text)
    except ValueError:
        raise Error from None
    if not -(1 << 31) <= number < 1 << 31:
        raise Error
    return number


def plain(tree, properties):
    """Return the value of a tree: True, False, None, or Error where Java throws."""
    match tree:
        case ("compare", sign, name, literal):
            value = properties.get(name)
            if value is None:
                return None
            if isinstance(literal, str):
                return value == literal
            number = plain_number(literal, value)
            return COMPARISONS[sign]((number > literal) - (number < literal))
        case ("null", name, wanted):
            return (properties.get(name) is None) is wanted
        case ("in", name, values, wanted):
            value = properties.get(name)
            return None if value is None else (value in values) is wanted
        case ("between", name, low, high, wanted):
            value = properties.get(name)
            if value is None:
                return None
            return (low <= plain_number(low, value) <= high) is wanted
        case ("contains", name, text, wanted):
            value = properties.get(name)
            return bool(text) and value is not None and (text in value) is wanted
        case ("not", part):
            value = plain(part, properties)
            return None if value is None else not value
        case ("and", left, right):
            one = plain(left, properties)
            if one is False:
                return False
            other = plain(right, properties)
            if other is False:
                return False
            return None if one is None or other is None else True
        case ("or", left, right):
            one = plain(left, properties)
            if one is True:
                return True
            other = plain(right, properties)
            if other is True:
                return True
            return None if one is None or other is None else False
    raise AssertionError(tree)


def quoted(text):
    return "'" + text.replace("'", "''") + "'"


def shown(tree):
    match tree:
        case ("compare", sign, name, literal):
            return f"{name} {sign} {quoted(literal) if isinstance(literal, str) else literal}"
        case ("null", name, wanted):
            return f"{name} IS {'' if wanted else 'NOT '}NULL"
        case ("in", name, values, wanted):
            return f"{name} {'' if wanted else 'not '}in ({', '.join(map(quoted, values))})"
        case ("between", name, low, high, wanted):
            return f"{name} {'' if wanted else 'NOT '}BETWEEN {low} AND {high}"
        case ("contains", name, text, wanted):
            return f"{name} {'' if wanted else 'NOT '}CONTAINS {quoted(text)}"
        case ("not", part):
            return f"NOT ({shown(part)})"
        case (word, left, right):
            return f"({shown(left)}) {word} ({shown(right)})"
    raise AssertionError(tree)


names = st.sampled_from(NAMES)
texts = st.sampled_from((*VALUES, "it's", "''"))
numbers = st.integers(-3, 3) | st.sampled_from((-1.5, 1.0, 1.5, 2.5))
leaves = st.one_of(
    st.tuples(st.just("compare"), st.sampled_from(sorted(COMPARISONS)), names, numbers),
    st.tuples(st.just("compare"), st.just("="), names, texts),
    st.tuples(st.just("null"), names, st.booleans()),
    st.tuples(st.just("in"), names, st.lists(texts, min_size=1, max_size=6).map(tuple), st.booleans()),
    st.tuples(st.just("between"), names, st.integers(-2, 0), st.integers(0, 2), st.booleans()),
    st.tuples(st.just("contains"), names, texts, st.booleans()),
)
trees = st.recursive(
    leaves,
    lambda part: st.one_of(
        st.tuples(st.just("not"), part), st.tuples(st.just("and"), part, part), st.tuples(st.just("or"), part, part)
    ),
    max_leaves=12,
)


@given(tree=trees, properties=st.dictionaries(names, texts.filter(bool)))
def test_a_compiled_expression_says_what_its_tree_says(tree, properties):
    try:
        wanted = plain(tree, properties) is True
    except Error:
        wanted = False
    assert matches(shown(tree), **properties) is wanted, shown(tree)


@given(st.text(st.sampled_from("abIN NOTAND()'=<>-+.0159eLl,/*\n\"\N{KELVIN SIGN}xs"), max_size=40))
def test_any_text_is_an_expression_or_a_clear_error(text):
    assert outcome(text)
