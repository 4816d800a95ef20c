import pytest

from rmqkit.suggestions import suggest

KEYS = ["flushDiskType", "brokerName", "brokerId"]


@pytest.mark.parametrize("word", ["flushDiskTyp", "flushdisktype", "FLUSHDISKTYPE", "flashDiskType"])
def test_the_closest_name_is_suggested_in_any_case(word: str):
    assert suggest(word, KEYS, "there are {known}") == "; did you mean flushDiskType?"


def test_of_several_similar_names_the_closest_is_suggested():
    assert suggest("brokerI", KEYS) == "; did you mean brokerId?"


@pytest.mark.parametrize(
    ("known", "otherwise", "text"),
    [
        (KEYS, "", ""),
        (KEYS, "create it first", "; create it first"),
        (KEYS, "there are {known}", "; there are flushDiskType, brokerName, brokerId"),
        ([], "there are {known}", "; there are none"),
    ],
)
def test_without_a_similar_name_the_other_text_is_suggested(known: list[str], otherwise: str, text: str):
    assert suggest("xyz", known, otherwise) == text
