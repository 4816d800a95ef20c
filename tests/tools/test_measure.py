"""What `make lint` counts as hard to read, and what it accepts."""

import ast

import pytest

from tools import measure


@pytest.mark.parametrize("name", ["Shown", "Copied", "BatchSending", "Told"])
def test_a_participle_is_counted(name):
    assert measure._is_participle(ast.parse(f"class {name}: ...").body[0])


@pytest.mark.parametrize("name", ["CopyResult", "Setting", "Remoting", "SendFailed", "Seed", "QueueRing"])
def test_a_noun_and_an_exception_are_not(name):
    assert not measure._is_participle(ast.parse(f"class {name}: ...").body[0])


def test_prose_is_counted_by_its_width_and_code_is_not(tmp_path):
    wide = "x " * 60
    page = tmp_path / "page.md"
    page.write_text(f"{wide}\n| {wide} |\n# {wide}\n```\n{wide}\n```\n{wide}\nshort\n")
    assert list(measure._wide_in_page(page)) == [1, 7]
    module = tmp_path / "module.py"
    module.write_text(f'"""{wide}"""\n# {wide}\nname = "{wide}"\ndef f():\n    """Short."""\n')
    assert list(measure._wide_in_module(module)) == [1, 2]


def test_a_public_thing_without_a_docstring_is_counted():
    class Bare:
        def method(self): ...

        def test_by_its_name(self): ...

    assert list(measure._undocumented("Bare", Bare)) == ["Bare", "Bare.method"]
