# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Every kind of annotation that a config has, with values that fit it and values that do not."""

import dataclasses
from typing import Literal

import numpy as np
import pytest

from phasejax.validation import check_fields


@dataclasses.dataclass
class Inner:
    size: int = 1


@dataclasses.dataclass
class Config:
    flag: bool = False
    size: int = 1
    rate: float = 1.0
    name: str = "a"
    choice: Literal["full", "compressed"] = "full"
    stride: int | None = None
    sizes: tuple[int, ...] = ()
    stages: tuple[tuple[int, int], ...] = ()
    inner: Inner = dataclasses.field(default_factory=Inner)


@pytest.mark.parametrize(
    "fields",
    [
        {"flag": True},
        {"size": -3},
        {"rate": 2},
        {"rate": np.float64(0.5)},
        {"choice": "compressed"},
        {"stride": 4},
        {"sizes": (1, 2, 3)},
        {"stages": ((1, 2), (3, 4))},
    ],
    ids=str,
)
def test_what_fits(fields):
    check_fields(Config(**fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"flag": 1}, r"flag=1 \(int\), but it must be true or false: change flag\."),
        ({"size": True}, r"size=True \(bool\), but it must be a whole number: change size\."),
        ({"size": 2.0}, r"size=2\.0 \(float\), .* a whole number"),
        ({"size": None}, r"size=None \(NoneType\)"),
        ({"rate": False}, r"rate=False \(bool\), .* a finite number"),
        ({"rate": "1"}, r"rate='1' \(str\)"),
        ({"rate": float("nan")}, r"rate=nan"),
        ({"rate": float("-inf")}, r"rate=-inf"),
        ({"rate": 10**400}, r"rate=1000.* a finite number"),
        ({"name": 3}, r"name=3 \(int\), but it must be a text"),
        ({"choice": "compresed"}, r"choice='compresed' is not one of .*did you mean 'compressed'"),
        ({"choice": 1}, r"choice=1 \(int\), but it must be one of full, compressed"),
        ({"choice": ["full"]}, r"choice=\['full'\] \(list\)"),
        ({"stride": "4"}, r"stride='4' \(str\), but it must be a whole number or None"),
        (
            {"sizes": [1, 2]},
            r"sizes=\[1, 2\] \(list\), .* a tuple of any length, each item a whole",
        ),
        ({"sizes": (1, 2.0)}, r"sizes=\(1, 2\.0\)"),
        ({"stages": ((1, 2, 3),)}, r"stages=.* each item a tuple of 2, each item a whole number"),
        ({"inner": 3}, r"inner=3 \(int\), but it must be of Inner"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_named_with_its_value_and_what_is_expected(fields, message):
    with pytest.raises(ValueError, match=message):
        check_fields(Config(**fields))
