"""What request and response codes mean: `rmqkit explain CODE`.

The tables are `explain/codes.toml`; which of our nodes answer a request comes from their handlers. Tables are read when a
command asks for them, as most commands do not.
"""

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from rmqkit.wire.codes import RequestCode, ResponseCode


class Meaning(NamedTuple):
    meaning: str
    do: str


@cache
def responses() -> dict[ResponseCode, Meaning]:
    return {ResponseCode[name]: Meaning(**row) for name, row in load("codes.toml")["response"].items()}


@cache
def requests() -> dict[RequestCode, str]:
    """Return what each request asks for."""
    return {RequestCode[name]: asks for name, asks in load("codes.toml")["request"].items()}


def load(name: str) -> dict[str, Any]:
    """Return a table of the folder `explain`. Its texts may have line breaks, which count as spaces."""
    text = files("rmqkit.cli.explain").joinpath(name).read_text(encoding="utf-8")
    return {key: _unwrapped(value) for key, value in tomllib.loads(text).items()}


def _unwrapped(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _unwrapped(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_unwrapped(each) for each in value]
    return " ".join(value.split())
