import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqkit.wire import properties_text

# MixAll.properties2String and string2Properties, run with Apache 5.5.0
WRITTEN = "a=1 2\nb=x=y\n"
READ = "#c\n a = b\\tc\\u4e2d \nk:v\n!x\nlong=1,\\\n   2\nonly\nsp\\ ace=z\n"


def test_text_is_that_of_mix_all() -> None:
    assert properties_text.encode({"a": "1 2", "b": "x=y"}) == WRITTEN
    assert properties_text.decode(WRITTEN) == {"a": "1 2", "b": "x=y"}
    assert properties_text.decode(READ) == {"a": "b\tc中 ", "k": "v", "long": "1,2", "only": "", "sp ace": "z"}
    assert properties_text.decode(READ.encode()) == properties_text.decode(READ)


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("", {}),
        ("\n \n\t\n", {}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a=1\na=2", {"a": "2"}),
        ("a  b=c", {"a": "b=c"}),
        ("a = = b", {"a": "= b"}),
        ("a:=b", {"a": "=b"}),
        ("=b", {"": "b"}),
        ("a=x\\\\", {"a": "x\\"}),
        ("a=x\\", {"a": "x"}),
        ("a=1\\\n#b\\\n  c", {"a": "1#bc"}),
        ("a\\=b=c\\:d", {"a=b": "c:d"}),
        ("a=\\u00e9\\n\\q\\ud83d\\ude00", {"a": "é\nq😀"}),
        ("a=\\u12", {"a": "u12"}),
        ("a=\\ud83d", {"a": "�"}),
        ("path=C:\\\\x\\\\y", {"path": "C:\\x\\y"}),
    ],
)
def test_reads_as_java_util_properties(text: str, pairs: dict[str, str]) -> None:
    assert properties_text.decode(text) == pairs


words = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.text("\\=: \t#!\n\rau", max_size=6)


@given(st.dictionaries(words, words))
def test_what_is_written_reads_back(pairs: dict[str, str]) -> None:
    assert properties_text.decode(properties_text.encode(pairs)) == pairs


@given(st.binary(max_size=40) | st.text("\\=:u0d \n#ab", max_size=20).map(str.encode))
def test_any_text_gives_pairs_that_read_back(data: bytes) -> None:
    pairs = properties_text.decode(data)
    assert properties_text.decode(properties_text.encode(pairs)) == pairs
