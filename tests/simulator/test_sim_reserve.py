"""What steps of decodes alone keep back for steps with prompts. Run: python -m pytest tests/simulator/test_sim_reserve.py"""

from dataclasses import replace

import numpy as np
import pytest
from fill_loads import Arrivals, directed

from nestedfp.steps.step_rule import StepRule
from simulator.engine.cost_table import TABLE, EngineTable, read_table

WITHOUT = StepRule(ttft_deadline_s=0.14, tpot_deadline_s=0.0266, tpot_grace_tokens=2)
WITH = replace(WITHOUT, decode_reserve_steps=2.0)
ALWAYS = replace(WITH, decode_reserve_share=0.0)


@pytest.fixture(scope="module")
def table() -> EngineTable:
    """The 24B shape, whose exact steps of decodes alone take most of its TPOT objective."""
    return read_table(TABLE.parent / "h100-mistral-24b-steps.json")


@pytest.mark.parametrize("per_s", [17, 21])
def test_more_tokens_are_exact_and_as_many_requests_in_time(table: EngineTable, per_s: int) -> None:
    found = []
    for seed in range(4):
        sizes = Arrivals(((per_s, 30),)).draw(seed)
        found.append([directed(table, sizes, WITHOUT), directed(table, sizes, WITH)])
    (kept, exact), (kept_with, exact_with) = np.mean(found, axis=0)
    assert exact_with > exact + 0.07
    assert kept_with > kept - 0.001


def test_where_prompts_are_few_nothing_is_kept_back(table: EngineTable) -> None:
    found = []
    for seed in range(4):
        sizes = Arrivals(((4, 30),)).draw(seed)
        found.append([directed(table, sizes, rule)[1] for rule in (WITHOUT, WITH, ALWAYS)])
    without, needed, always = np.mean(found, axis=0)
    assert needed > without - 0.001
    assert always < without - 0.01
