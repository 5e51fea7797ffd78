"""A diagnosis names each planted fault first, and the rule that it gives mends the step."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from habana_mp import hmp
from helpers.planted import FAULTS, Fault


@pytest.mark.filterwarnings("ignore:.*is made from a result that habana_mp lowered")
@pytest.mark.parametrize("fault", FAULTS, ids=lambda one: one.name)
def test_the_planted_line_is_named_first_and_its_rule_mends_the_step(fault: Fault) -> None:
    torch.manual_seed(0)
    step = fault.make()
    arguments: dict[str, Any] = fault.convert_arguments()
    hmp.convert(**arguments)
    found = hmp.diagnose(step)
    assert not found.healthy
    first = found.findings[0]
    assert (first.line, first.file.endswith("planted.py")) == (fault.line, True), str(found)
    assert f"`{first.operation}` at" in first.text
    hmp.convert(**{**arguments, "rules": {**arguments["rules"], **first.rule}})
    assert hmp.diagnose(step).healthy
