import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqkit.wire.javahash import index_key_hash, java_hash, tags_code


def by_definition(text: str) -> int:
    units = text.encode("utf-16-be", "surrogatepass")
    hashed = 0
    for position in range(0, len(units), 2):
        hashed = hashed * 31 + int.from_bytes(units[position : position + 2])
    return (hashed + 2**31) % 2**32 - 2**31


# String.hashCode of Java 17
@pytest.mark.parametrize(
    ("text", "hashed"),
    [
        ("", 0),
        ("a", 97),
        ("TagA", 2598919),
        ("polygenelubricants", -(2**31)),
        ("中文😀", 622957533),
        ("TopicTest#key1", -1655984460),
    ],
)
def test_hash_is_that_of_java_string_hash_code(text: str, hashed: int) -> None:
    assert java_hash(text) == tags_code(text) == hashed
    assert by_definition(text) == hashed


def test_index_key_hash_as_index_file_index_key_hash_method() -> None:
    assert index_key_hash("TopicTest", "key1") == 1655984460
    assert index_key_hash("T", "FD000000000000000000000000000002394030946E096A2111540000") == abs(
        java_hash("T#FD000000000000000000000000000002394030946E096A2111540000")
    )


def test_the_hash_without_an_absolute_value_becomes_zero() -> None:
    # With this key h("t#" + key) is Integer.MIN_VALUE; found by search.
    key = next(k for k in candidates() if by_definition("t#" + k) == -(2**31))
    assert index_key_hash("t", key) == 0


def candidates() -> list[str]:
    """Return keys of 14 characters; one of them, after `t#`, hashes to -2**31.

    Found by solving for the digits in base 31.
    """
    base = by_definition("t#" + "A" * 14)
    need = (-(2**31) - base) % 2**32
    found = []
    for extra in range(40):
        rest, digits = need + extra * 2**32, []
        for _ in range(14):
            rest, digit = divmod(rest, 31)
            digits.append(digit)
        if rest == 0:
            found.append("".join(chr(ord("A") + digit) for digit in reversed(digits)))
    return found


@given(st.text(st.characters(), max_size=40))
def test_hash_of_any_text(text: str) -> None:
    assert java_hash(text) == by_definition(text)


@given(st.text(max_size=10), st.text(st.characters(max_codepoint=127), max_size=60) | st.text(max_size=30))
def test_index_key_hash_of_any_key(topic: str, key: str) -> None:
    hashed = by_definition(f"{topic}#{key}")
    assert index_key_hash(topic, key) == (0 if hashed == -(2**31) else abs(hashed))
