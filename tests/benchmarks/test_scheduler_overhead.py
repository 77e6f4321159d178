"""The benchmark of the schedulers: real ones, of vLLM and of the plugin, that decode without a model between them."""

import pytest
import vllm_parts  # vLLM, imported with its warnings kept quiet

from benchmarks import results_csv
from benchmarks.control import scheduler_overhead

SEQUENCES = 3
assert vllm_parts.MODEL == scheduler_overhead.MODEL


def test_every_system_has_a_row_with_the_processor_time_of_a_step(tmp_path, capsys):
    path = tmp_path / "rows.csv"
    assert scheduler_overhead.main(["--sequences", str(SEQUENCES), "--turns", "1", "--out", str(path)]) == 0
    _, columns, rows = results_csv.read(path)
    assert columns == ["system", "directive", "sequences", "schedule_us", "update_us"]
    assert [row[:3] for row in rows] == [
        ["vllm", "", "3"],
        ["nestedfp", "fp16", "3"],
        ["nestedfp", "fp8", "3"],
        ["nestedfp", "auto", "3"],
    ]
    assert all(float(value) > 0 for row in rows for value in row[3:])
    assert len(capsys.readouterr().out.splitlines()) == len(rows)


@pytest.mark.parametrize("directive", ["fp16", "fp8"])
def test_each_step_of_a_turn_decodes_every_sequence_in_the_mode_of_the_directive(directive):
    decoding = scheduler_overhead.Decoding(directive, SEQUENCES)
    for turns in (1, 2):
        decoding.turn()
        stats = decoding._scheduler.nestedfp_stats()
        steps = turns * scheduler_overhead.STEPS_A_TURN
        # The prompt's step brings the first token, and every other one the next.
        tokens = SEQUENCES * (turns * scheduler_overhead.PROMPT_TOKENS + steps - turns)
        assert (stats[f"steps_{directive}"], stats[f"tokens_{directive}"]) == (steps, tokens)
        assert decoding._scheduler.get_num_unfinished_requests() == 0, "the next turn begins with an empty scheduler"
