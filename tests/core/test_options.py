from __future__ import annotations

from dataclasses import dataclass

import pytest

from idness.core.errors import OptionError
from idness.core.options import check_options, count, nonnegative, read_method, split_methods


def test_methods_are_split_at_the_commas_between_them():
    text = " msp, ash(variant=s, percentile=95),knn(k=[1, 2]),ebo,"
    assert split_methods(text) == ["msp", "ash(variant=s, percentile=95)", "knn(k=[1, 2])", "ebo"]
    assert split_methods("") == []
    assert split_methods("react(percentile=9e+1) + dice", between="+") == ["react(percentile=9e+1)", "dice"]


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        ("scale", "scale", {}),
        (" scale ( percentile = 95 ) ", "scale", {"percentile": 95}),
        ("ash-s(percentile=90.5,)", "ash-s", {"percentile": 90.5}),
        ("ash(variant=s, readout='msp')", "ash", {"variant": "s", "readout": "msp"}),
        ("gen(m=None)", "gen", {"m": None}),
        ("chain(steps=react(percentile=90)+dice(percentile=10))", "chain", {"steps": "react(percentile=90)+dice(percentile=10)"}),
        ("folder/my_file.py:Mine(power=2)", "folder/my_file.py:Mine", {"power": 2}),
    ],
)  # fmt: skip
def test_a_method_is_its_name_and_its_options(text, name, options):
    assert read_method(text) == (name, options)


WRONG = ["", "scale(percentile=95", "scale)", "scale(percentile=95)(k=2)", "scale(95)", "scale(=95)", "sca le", "a+b"]


@pytest.mark.parametrize("text", [*WRONG, "msp)", "ash(percentile=95,ebo", "msp)(,ebo"])
def test_what_cannot_be_read_is_reported_in_one_way(text):
    with pytest.raises(OptionError, match=r"expected name or name\(option=value, \.\.\.\), got "):
        [read_method(part) for part in split_methods(text) or [""]]


@dataclass
class Counted:
    k: int = count(3)
    power: float = nonnegative(0.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": True}, "Counted: k must be a number, got True"),
        ({"k": 2.0}, r"Counted: k must be a whole number of at least 1, got 2\.0"),
        ({"k": 0}, "k must be a whole number of at least 1, got 0"),
        ({"power": -1}, "power must be 0 or more, got -1"),
        ({"power": float("inf")}, "power must be 0 or more, got inf"),
        ({"power": "x"}, "power must be a number, got 'x'"),
    ],
)
def test_declared_options_are_checked(options, message):
    check_options(Counted())
    with pytest.raises(OptionError, match=message):
        check_options(Counted(**options))
