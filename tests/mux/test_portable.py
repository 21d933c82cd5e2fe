"""A journal leads to the same on every machine: no decision depends on how a library rounds logarithms or powers."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import rollmux.mux
from rollmux.mux.totals import total

# Of these, as of sums, products and quotients of two numbers, IEEE 754 or Python says every bit.
EXACT = {"ceil", "floor", "fsum", "gcd", "inf", "isfinite", "isinf", "isnan", "isqrt", "lcm", "sqrt", "trunc"}


def inexact(source: str) -> Iterator[str]:
    """What in it may have another last bit on another machine."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.ImportFrom(module="math", names=names):
                yield from {each.name for each in names} - EXACT
            case ast.Import(names=names):
                yield from {each.name for each in names} & {"cmath", "math", "statistics"}
            case ast.ImportFrom(module="cmath" | "statistics" as module):
                yield module
            case ast.Name(id="sum"):  # floats are summed otherwise from Python 3.12 on
                yield "sum"
            case ast.BinOp(left=left, op=ast.Pow(), right=right) if not (_is_whole(left) and _is_whole(right)):
                yield ast.unparse(node)


def _is_whole(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int)


def test_decisions_are_made_of_numbers_that_are_the_same_on_every_machine() -> None:
    found = {str(path): list(inexact(path.read_text())) for path in Path(rollmux.mux.__path__[0]).rglob("*.py")}
    assert len(found) > 30
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "source", ["from math import inf, exp", "import math", "import statistics", "x ** 0.5", "x ** y", "sum(x)"]
)
def test_what_rounds_as_the_machine_does_is_found(source: str) -> None:
    assert list(inexact(source))


def test_a_total_rounds_each_of_its_sums_on_every_python() -> None:
    assert total([1e16, 1.0, -1e16]) == 0.0
    assert total(number > 1 for number in (1, 2, 3)) == 2
    assert total([]) == 0
