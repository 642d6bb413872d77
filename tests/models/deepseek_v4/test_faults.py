# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The table of planted faults fits the code and the register; planting them takes minutes."""

import re

import pytest

from tests.models.deepseek_v4.plant_faults import FAULTS, NOT_PLANTED, ROOT, place


@pytest.mark.parametrize("row", FAULTS, ids=[row[0] for row in FAULTS])
def test_every_fault_has_its_place_and_its_test(row):
    _, file, there, fault, test = row
    assert there in place(file).read_text() and there != fault
    path, name = test.partition("[")[0].split("::")
    assert f"def {name}(" in (ROOT / path).read_text()


def test_every_item_of_the_register_is_planted_or_cannot_be():
    planted = {row[0].split()[0] for row in FAULTS} - {"-"}
    assert not planted & set(NOT_PLANTED)
    items = {int(re.match(r"\d+", name)[0]) for name in planted | set(NOT_PLANTED)}
    assert items == set(range(1, 28))
