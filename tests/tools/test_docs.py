"""`make docs` puts tables between their own marks and reports mistakes."""

import pytest

from rmqkit.drill.promises import PROMISES
from tools import docs
from tools.pages.promises import TAKEOVER

BEGIN, END = docs.BEGIN.format(name="a", command="make docs"), docs.END.format(name="a")


def test_a_table_is_put_between_its_own_marks():
    text = f"head\n{BEGIN}\nold\n{END}\nmiddle\n{BEGIN.replace('a:', 'b:')}\n{END.replace('of a', 'of b')}\ntail\n"
    after = docs.replaced(text, {"a": "| one |", "b": "| two |"})
    assert after.splitlines()[:5] == ["head", BEGIN, "| one |", END, "middle"]
    assert after.endswith("| two |\n<!-- end of b -->\ntail\n")
    assert docs.replaced(after, {"a": "| one |", "b": "| two |"}) == after


@pytest.mark.parametrize("text", ["", f"{BEGIN}\nno end\n", f"no begin\n{END}\n"])
def test_a_page_without_a_mark_is_an_error(text):
    with pytest.raises(ValueError, match="no marks for the table a"):
        docs.replaced(text, {"a": ""})


def test_only_what_changed_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(docs, "DOCS", tmp_path)
    monkeypatch.setattr(docs, "PAGES", {"one.md": docs.whole(lambda: "1\n"), "two.md": docs.whole(lambda: "2\n")})
    (tmp_path / "one.md").write_text("1\n")
    assert docs.write(["one.md", "two.md"]) == ["two.md"]
    assert (tmp_path / "two.md").read_text() == "2\n"


def test_an_unknown_page_is_an_error(capsys):
    assert docs.main(["no.md"]) == 2
    assert "unknown page no.md" in capsys.readouterr().err


def test_takeovers_name_promises_that_there_are():
    assert {each.promise for each in TAKEOVER} - {""} <= set(PROMISES)
