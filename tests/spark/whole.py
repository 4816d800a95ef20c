"""Tests of Spark that take seconds each, beside others of the same thing: `make spark` runs them, `make test` does not."""

import os

import pytest

whole = pytest.mark.skipif(os.environ.get("RMQKIT_SPARK") != "whole", reason="make spark runs it")
