"""The contract of a filter, as tests: what a broker relies on, for any kind of expression.

    from rmqkit.testing import FilterContract

    class TestMine(FilterContract):
        make = MyFilter                                  # the factory that the plug-in registers
        wanted = (("colour=red", {"colour": "red"}),)    # (expression, properties): delivered
        unwanted = (("colour=red", {"colour": "blue"}), ("colour=red", {}))     # not delivered
        bad = ("", "colour=", "colour=red=blue")         # refused expressions

The property TAGS is the message's tag. The tests compute the tag's code for the queue entry.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar

import pytest

from rmqkit.broker.filters.contract import CompiledFilter, Filter, FilterError
from rmqkit.wire.javahash import tags_code
from rmqkit.wire.properties import PROPERTY_TAGS

#: expressions that a client may send
HOSTILE = (
    "",
    " ",
    "\0",
    "\n",
    "*",
    "||",
    "'",
    "(" * 10_000,
    "(" * 5_000 + "a" + ")" * 5_000,
    "NOT " * 5_000 + "a",
    "a" * 100_000,
    "a || " * 20_000,
    "a = 1 AND " * 5_000 + "a = 1",
    "\N{SNOWMAN} = \N{KELVIN SIGN}",
    "\ud800",
)
#: properties that a producer may send
ODD: tuple[Mapping[str, str], ...] = (
    {},
    {"": ""},
    {"a": ""},
    {"a": "x" * 30_000},
    {"a": "9" * 30_000},
    {"a": "-"},
    {"a": "NaN"},
    {"a": "\0"},
    {"a": "\ud800"},
    {PROPERTY_TAGS: "||"},
    {f"name{i}": str(i) for i in range(500)},
)


def delivers(compiled: CompiledFilter, properties: Mapping[str, str]) -> bool:
    """Return whether a broker would deliver a message with these properties."""
    tag = properties.get(PROPERTY_TAGS, "")
    if compiled.match_tags is not None and not compiled.match_tags(tags_code(tag) if tag else 0):
        return False
    return compiled.match_properties is None or compiled.match_properties(properties)


class FilterContract:
    """Tests for a filter. Subclass it, and set `make` and the expressions to test with.

    Attributes:
        make: The factory under test. The tests call it without arguments.
        wanted: Pairs of an expression and the properties of a message that it delivers.
        unwanted: Pairs of an expression and the properties of a message that it does not deliver.
        bad: Texts that the filter must refuse.

    Example:
        Test a filter with expressions such as `colour=red`:

            from rmqkit.testing import FilterContract

            class TestMine(FilterContract):
                make = MyFilter
                wanted = (("colour=red", {"colour": "red"}),)
                unwanted = (("colour=red", {"colour": "blue"}), ("colour=red", {}))
                bad = ("", "colour=", "colour=red=blue")
    """

    make: ClassVar[Callable[[], Filter]]
    wanted: ClassVar[Sequence[tuple[str, Mapping[str, str]]]]
    unwanted: ClassVar[Sequence[tuple[str, Mapping[str, str]]]]
    bad: ClassVar[Sequence[str]]

    @pytest.fixture
    def filter(self) -> Filter:
        """A new filter for each test.

        Example:
            Add a test of your own to the suite:

                class TestMine(FilterContract):
                    ...

                    def test_it_needs_no_tag(self, filter):
                        assert filter.compile("colour=red").match_tags is None
        """
        return type(self).make()

    def _all(self) -> list[str]:
        return list(dict.fromkeys(expression for expression, _ in (*self.wanted, *self.unwanted)))

    def test_it_delivers_what_is_wanted_and_nothing_else(self, filter: Filter) -> None:
        for expression, properties in self.wanted:
            assert delivers(filter.compile(expression), properties) is True, (expression, properties)
        for expression, properties in self.unwanted:
            assert delivers(filter.compile(expression), properties) is False, (expression, properties)

    def test_the_members_are_functions_or_none(self, filter: Filter) -> None:
        for expression in self._all():
            compiled = filter.compile(expression)
            assert compiled.match_tags is None or callable(compiled.match_tags)
            assert compiled.match_properties is None or callable(compiled.match_properties)

    def test_what_is_no_expression_is_refused_in_one_line(self, filter: Filter) -> None:
        for text in self.bad:
            with pytest.raises(FilterError) as raised:
                filter.compile(text)
            assert str(raised.value).strip(), repr(text)
            assert "\n" not in str(raised.value), repr(text)
            assert len(str(raised.value)) < 1000, "a response carries the text in a header"

    @pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text[:12]))
    def test_any_text_is_compiled_or_refused(self, filter: Filter, text: str) -> None:
        """Any exception but FilterError would look like an error of the broker to the client."""
        try:
            compiled = filter.compile(text)
        except FilterError:
            return
        for properties in ODD:
            assert delivers(compiled, properties) in (True, False)

    def test_any_properties_are_taken(self, filter: Filter) -> None:
        for expression in self._all():
            compiled = filter.compile(expression)
            for properties in ODD:
                assert delivers(compiled, properties) in (True, False), (expression, properties)

    @pytest.mark.parametrize("code", [0, 1, -1, (1 << 31) - 1, -(1 << 31), 1_760_000_000_000, -(1 << 63)])
    def test_any_tags_code_is_taken(self, filter: Filter, code: int) -> None:
        """Tag codes are Java's hash codes, or times in some topics."""
        for expression in self._all():
            match = filter.compile(expression).match_tags
            assert match is None or match(code) in (True, False)

    def test_it_changes_nothing_and_keeps_nothing(self, filter: Filter) -> None:
        """One compiled expression serves all pulls of all queues, in any order."""
        cases = [
            (filter.compile(expression), MappingProxyType(dict(of))) for expression, of in (*self.wanted, *self.unwanted)
        ]
        forth = [delivers(*case) for case in cases]
        back = [delivers(*case) for case in reversed(cases)]
        assert forth == back[::-1] == [True] * len(self.wanted) + [False] * len(self.unwanted)
