"""Filter `SQL92`: selects messages by their properties.

Example: `price BETWEEN 10 AND 20 AND region IN ('eu', 'us')`.

The language is that of Apache's broker:

    OR  AND  NOT  =  <>  <  <=  >  >=  IS [NOT] NULL  [NOT] BETWEEN … AND …  [NOT] IN ('…', '…')
    [NOT] CONTAINS '…'  [NOT] STARTSWITH '…'  [NOT] ENDSWITH '…'  + - ( )
    TRUE FALSE NULL, whole numbers (7, 7L), decimals (7.5, 1e3), texts in single quotes ('it''s'),
    names of properties, comments -- to the end of the line and /* … */

Keywords ignore case, names do not. There is no LIKE and no arithmetic. One difference: Apache's
parser stops at the end of the first complete expression and ignores the rest of the text
(`a > 1 LIKE 'x'` is `a > 1`). Here such a rest is an error.

`lark` parses with tables and without recursion. It is imported when the first expression comes. A
parsed expression consists of closures (`sql_nodes.py`). If Java would end an evaluation with an
exception, the message is not wanted.

Source: `filter/.../parser/SelectorParser.jj`, `filter/.../SqlFilter.java`.
"""

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from rmqkit.broker.filters import sql_nodes as nodes
from rmqkit.broker.filters.contract import FilterError, MatchProperties, MatchTags, Properties
from rmqkit.broker.filters.sql_values import NotComparable

if TYPE_CHECKING:
    from lark import Lark, Token

#: limit of an expression, in characters
EXPRESSION_SIZE_MAX = 8192

_KEYWORDS = ["NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH"]
_NAME_END = "(?![A-Za-z0-9_$])"


def _any_case(word: str) -> str:
    """Return a pattern for a word in any case, of ASCII letters only.

    With the flag `i` the Kelvin sign would match a k.
    """
    return "".join(f"[{letter}{letter.lower()}]" for letter in word)


_GRAMMAR = r"""
?start: or_expr _REST_COMMENT? -> whole
?or_expr: and_expr | and_expr (_OR and_expr)+ -> any_of
?and_expr: equality | equality (_AND equality)+ -> all_of
?equality: comparison
    | equality "=" comparison -> equal
    | equality "<>" comparison -> not_equal
    | equality _IS _NULL -> is_null
    | equality _IS _NOT _NULL -> is_not_null
?comparison: unary
    | comparison ">" unary -> greater
    | comparison ">=" unary -> at_least
    | comparison "<" unary -> less
    | comparison "<=" unary -> at_most
    | comparison _CONTAINS STRING -> contains
    | comparison _NOT _CONTAINS STRING -> not_contains
    | comparison _STARTSWITH STRING -> starts_with
    | comparison _NOT _STARTSWITH STRING -> not_starts_with
    | comparison _ENDSWITH STRING -> ends_with
    | comparison _NOT _ENDSWITH STRING -> not_ends_with
    | comparison _BETWEEN unary _AND unary -> between
    | comparison _NOT _BETWEEN unary _AND unary -> not_between
    | comparison _IN "(" STRING ("," STRING)* ")" -> in_
    | comparison _NOT _IN "(" STRING ("," STRING)* ")" -> not_in
?unary: primary
    | "+" unary
    | "-" unary -> minus
    | _NOT unary -> not_
?primary: STRING -> text
    | WHOLE -> whole_number
    | FLOAT -> float_number
    | _TRUE -> true
    | _FALSE -> false
    | _NULL -> null
    | NAME -> variable
    | "(" or_expr ")"

STRING: /'(?:''|[^'])*'/
FLOAT.2: /[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+/
WHOLE: /0|[1-9][0-9]*[lL]?/
_REST_COMMENT: /--[^\n\r]*\Z/
%ignore /[ \t\n\r\f]+/
%ignore /--[^\n\r]*(?:\r\n|\n|\r)/
%ignore /\/\*[^*]*\*+(?:[^*\/][^*]*\*+)*\//
"""

#: common mistakes, by word or first character, and what to write instead
_HINTS = {
    '"': "write texts in single quotes",
    "LIKE": "there is no LIKE; use CONTAINS, STARTSWITH or ENDSWITH",
    "!": "not equal is <>",
    "&": "write AND",
    "|": "write OR",
    "'": "the text has no closing quote",
    "*": "there is no arithmetic",
    "/": "there is no arithmetic",
}


class CompiledSql(NamedTuple):
    """A compiled expression. It cannot rule out a message by the tag's code."""

    match_properties: MatchProperties | None
    match_tags: MatchTags | None = None


class Sql92Filter:
    """The filter for the expression type SQL92."""

    def compile(self, expression: str) -> CompiledSql:
        evaluate = parse(expression).evaluate

        def matches(properties: Properties) -> bool:
            try:
                return evaluate(properties) is True
            except NotComparable:
                return False

        return CompiledSql(matches)


def parse(expression: str) -> nodes.SqlNode:
    """Parse an expression and return its condition. Raises FilterError."""
    if len(expression) > EXPRESSION_SIZE_MAX:
        raise FilterError(
            f"the SQL92 expression has {len(expression)} characters, more than {EXPRESSION_SIZE_MAX}; shorten it"
        )
    from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

    try:
        made = _parser().parse(expression)
    except UnexpectedInput as error:
        if isinstance(error, UnexpectedToken) and error.token.type == "$END":
            what = "it ends too early"
        elif isinstance(error, UnexpectedToken | UnexpectedCharacters):
            at = error.pos_in_stream or 0
            what = f"column {at + 1}: {_not_expected(expression[at:], isinstance(error, UnexpectedCharacters))}"
        else:
            what = "it cannot be parsed"
    except FilterError as error:
        what = str(error)
    else:
        assert isinstance(made, nodes.SqlNode)
        return made
    raise FilterError(f"SQL92 expression {_short(expression)}: {what}")


def _not_expected(rest: str, is_unknown: bool) -> str:
    """Describe an unexpected token. `is_unknown` means that no token begins like that."""
    word = rest.split(None, 1)[0] if rest.split() else ""
    hint = _HINTS.get(word.upper()) or (_HINTS.get(word[:1]) if is_unknown else None)
    return f"{_short(word)} is not expected here{f' ({hint})' if hint else ''}"


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}…")


@cache
def _parser() -> "Lark":
    from lark import Lark

    words = "|".join(_any_case(word) for word in _KEYWORDS)
    terminals = [f"_{word}: /{_any_case(word)}{_NAME_END}/" for word in _KEYWORDS]
    terminals.append(f"NAME: /(?!(?:{words}){_NAME_END})[A-Za-z_$][A-Za-z0-9_$]*/")
    return Lark(
        _GRAMMAR + "\n".join(terminals),
        parser="lalr",
        lexer="contextual",
        transformer=_builder(),
        propagate_positions=False,
        maybe_placeholders=False,
    )


def _text(token: "Token") -> str:
    return str(token)[1:-1].replace("''", "'")


def _builder() -> Any:
    """Return the transformer: it makes a node of each grammar rule's parts."""
    from lark import Transformer

    def pair(make: Any) -> Any:
        return lambda _, parts: make(*parts)

    def order(way: nodes.Order) -> Any:
        return lambda _, parts: nodes.ordered(way, *parts)

    def text_test(test: nodes.TextTest, wanted: bool) -> Any:
        return lambda _, parts: nodes.holds(test, parts[0], _text(parts[1]), wanted=wanted)

    def among(wanted: bool) -> Any:
        return lambda _, parts: nodes.one_of(parts[0], [_text(part) for part in parts[1:]], wanted=wanted)

    rules: dict[str, Any] = {
        "whole": lambda _, parts: nodes.as_boolean(parts[0]),
        "any_of": lambda _, parts: nodes.any_of(parts),
        "all_of": lambda _, parts: nodes.all_of(parts),
        "equal": pair(nodes.equal),
        "not_equal": pair(nodes.not_equal),
        "is_null": pair(nodes.is_null),
        "is_not_null": pair(nodes.is_not_null),
        "greater": order(nodes.GREATER),
        "at_least": order(nodes.AT_LEAST),
        "less": order(nodes.LESS),
        "at_most": order(nodes.AT_MOST),
        "contains": text_test(nodes.CONTAINS, True),
        "not_contains": text_test(nodes.CONTAINS, False),
        "starts_with": text_test(nodes.STARTSWITH, True),
        "not_starts_with": text_test(nodes.STARTSWITH, False),
        "ends_with": text_test(nodes.ENDSWITH, True),
        "not_ends_with": text_test(nodes.ENDSWITH, False),
        "between": pair(nodes.between),
        "not_between": pair(nodes.not_between),
        "in_": among(True),
        "not_in": among(False),
        "minus": pair(nodes.minus),
        "not_": pair(nodes.negated),
        "text": lambda _, parts: nodes.text(_text(parts[0])),
        "whole_number": lambda _, parts: nodes.whole_number(str(parts[0])),
        "float_number": lambda _, parts: nodes.float_number(str(parts[0])),
        "true": lambda _, __: nodes.TRUE,
        "false": lambda _, __: nodes.FALSE,
        "null": lambda _, __: nodes.NULL,
        "variable": lambda _, parts: nodes.variable(str(parts[0])),
    }
    return type("Builder", (Transformer,), rules)()
