"""A whole vLLM engine on a GPU with both sets of CUDA graphs: exactness against vLLM's own FP16, flipping every step.

Run: ``pytest -q -m gpu tests/plugin/test_gpu_engine.py``. Each scenario is one engine in one process
(tests/gpu_engine_scenario.py). tests/plugin/test_engine.py runs on a GPU as well.
"""

import json
import random
import statistics

import pytest
import torch
from greedy import assert_same_greedy_tokens
from processes import ROOT, run_json

pytestmark = pytest.mark.gpu

MODEL = str(ROOT / "models" / "fairytales-8m")
PROMPTS = [
    "Once upon a time there was a king who",
    "The old woman said to the fox:",
    "In the middle of the forest",
    "The king's daughter took the golden ball and",
    "When the sun had gone down, the soldier",
    "There lived a poor woodcutter with his wife",
    "The wolf knocked at the door and",
    "A merchant had three sons, and the youngest",
]
TEXT_TOKENS = 400
EXACT = [0, 2, 5, 6]  # of the prompts, in mixed steps
FLIP_ROUNDS, FLIP_TOKENS = 20, 200  # 4000 steps


@pytest.fixture(scope="module", autouse=True)
def hopper():
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a GPU of compute capability 9.0")


def scenario(jobs, *, nested=True, **engine):
    engine = {"model": MODEL, **({"quantization": "nestedfp"} if nested else {}), **engine}
    return run_json("gpu_engine_scenario.py", {"engine": engine, "nested": nested, "jobs": jobs}, 300.0, None)


GREEDY = {"kind": "greedy", "prompts": PROMPTS, "max_tokens": 64}


@pytest.fixture(scope="module")
def texts():
    """Texts that the model itself wrote, as token ids."""
    (found,) = scenario([{"kind": "sample", "prompts": PROMPTS, "max_tokens": TEXT_TOKENS}], nested=False)["jobs"]
    return found


@pytest.fixture(scope="module")
def plain(texts):
    """vLLM's FP16: scores of all texts, greedy tokens."""
    return scenario([{"kind": "score", "texts": texts}, GREEDY], nested=False)["jobs"]


@pytest.fixture(scope="module")
def regrouped(texts):
    """vLLM's FP16 again, in steps of 96 tokens: other tiles, so the same sums in another order."""
    return scenario([{"kind": "score", "texts": texts}], nested=False, max_num_batched_tokens=96, max_num_seqs=96)[
        "jobs"
    ]


@pytest.fixture(scope="module")
def nested(texts):
    """One engine with both sets of graphs, driven through everything."""
    return scenario(
        [
            {"kind": "score", "texts": texts},
            {"kind": "score", "texts": texts, "mode": "fp8"},
            GREEDY,
            {**GREEDY, "mode": "fp8"},
            {"kind": "flip", "prompts": PROMPTS, "max_tokens": FLIP_TOKENS, "rounds": FLIP_ROUNDS},
            GREEDY,
            {**GREEDY, "mode": "fp8"},
            {"kind": "score", "texts": texts},
            {"kind": "score", "texts": texts, "mode": "fp8", "exact": EXACT},
            {**GREEDY, "mode": "fp8", "exact": EXACT},
        ]
    )


def differences(scores, reference):
    """Absolute differences of the log-probabilities of all tokens of all texts."""
    return [abs(a - b) for s, r in zip(scores, reference, strict=True) for a, b in zip(s, r, strict=True)]


def test_fp16_mode_scores_texts_as_vllm_does_up_to_the_order_of_additions(plain, regrouped, nested):
    ours, natural = differences(nested["jobs"][0], plain[0]), differences(regrouped[0], plain[0])
    assert len(ours) > len(PROMPTS) * TEXT_TOKENS
    assert max(natural) > 0, "another grouping should change some last bit"
    assert statistics.mean(ours) < 2 * statistics.mean(natural)
    assert max(ours) < 3 * max(natural)


def test_fp8_mode_differs_by_more_than_the_order_of_additions_and_stays_close(plain, nested):
    exact, rounded = differences(nested["jobs"][0], plain[0]), differences(nested["jobs"][1], plain[0])
    assert statistics.mean(rounded) > 3 * statistics.mean(exact)
    loss, exact_loss = (-statistics.mean(x for s in scores for x in s) for scores in (nested["jobs"][1], plain[0]))
    assert abs(loss - exact_loss) < 0.02


def test_mixed_steps_score_each_text_as_steps_of_its_precision_do_up_to_the_order_of_additions(
    plain, regrouped, nested
):
    assert {tuple(step) for step in nested["mixed_steps"]} >= {(len(EXACT), len(PROMPTS) - len(EXACT))}
    exact, rounded, mixed = nested["jobs"][0], nested["jobs"][1], nested["jobs"][8]
    natural = differences(regrouped[0], plain[0])
    expected = [(exact if i in EXACT else rounded)[i] for i in range(len(PROMPTS))]
    ours = differences([mixed[i] for i in EXACT], [expected[i] for i in EXACT])
    assert statistics.mean(ours) < 2 * statistics.mean(natural)
    # Codes of E4M3 magnify a last bit: the fast texts are held to how far FP8 is from FP16.
    fast = [i for i in range(len(PROMPTS)) if i not in EXACT]
    theirs = differences([mixed[i] for i in fast], [expected[i] for i in fast])
    assert statistics.mean(theirs) < statistics.mean(differences(rounded, exact)) / 2
    assert_same_greedy_tokens(
        {key: [nested["jobs"][9][key][i] for i in EXACT] for key in ("tokens", "margins")},
        {key: [plain[1][key][i] for i in EXACT] for key in ("tokens", "margins")},
    )


def test_greedy_tokens_of_fp16_mode_are_those_of_vllm(plain, nested):
    assert_same_greedy_tokens(nested["jobs"][2], plain[1])


def test_greedy_tokens_do_not_depend_on_graphs(plain):
    (eager,) = scenario([GREEDY], enforce_eager=True)["jobs"]
    assert_same_greedy_tokens(eager, plain[1])


def heads_of_128(folder):
    """A small random Llama with the heads of large ones, for which FlashAttention has a kernel of its own for short queries."""
    config = json.loads((ROOT / "models" / "fairytales-8m" / "config.json").read_text())
    config |= {"hidden_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 128}
    (folder / "config.json").write_text(json.dumps(config))
    return {"model": str(folder), "load_format": "dummy", "skip_tokenizer_init": True}


@pytest.mark.parametrize(("heads", "budget"), [(64, 256), (128, 256), (128, 512)])
def test_whole_graphs_of_steps_with_prompts_change_no_bit(tmp_path, heads, budget):
    model = {} if heads == 64 else heads_of_128(tmp_path)
    draw = random.Random(5)
    # Steps of the whole budget: ends of one text and beginnings of the next, of any length, beside decodes.
    texts = [[draw.randrange(5, 4000) for _ in range(draw.randrange(2, 300))] for _ in range(80)]
    score = {"kind": "score", "texts": texts}
    jobs = [score, {**score, "mode": "fp8"}, {"kind": "greedy", "prompts": texts[:40], "max_tokens": 24}]

    def run(tokens):
        options = {"nestedfp": {"whole_graph_tokens": tokens, "step_costs": "off"}}
        sizes = {"max_num_batched_tokens": budget, "max_num_seqs": 256}
        return scenario([dict(job) for job in jobs], additional_config=options, **sizes, **model)["jobs"]

    whole, pieces = run(512), run(0)
    assert whole == pieces
    assert whole[0] != whole[1]


def test_thousands_of_flips_change_nothing(nested):
    _, _, fp16, fp8, flipped, fp16_after, fp8_after, scores_after, *_ = nested["jobs"]
    assert flipped["switches"] >= FLIP_ROUNDS * (FLIP_TOKENS - 5)
    assert min(flipped["steps_fp16"], flipped["steps_fp8"]) >= FLIP_ROUNDS * (FLIP_TOKENS // 2 - 5)
    assert all(tokens == flipped["tokens"][0] for tokens in flipped["tokens"]), "rounds drift"
    assert fp16_after["tokens"] == fp16["tokens"]
    assert fp8_after["tokens"] == fp8["tokens"]
    assert scores_after == nested["jobs"][0]
    assert fp8["tokens"] != fp16["tokens"]


def test_thousands_of_flips_leak_no_memory(nested):
    settled, last = nested["jobs"][4]["memory"][2], nested["jobs"][4]["memory"][-1]
    assert last["allocated"] <= settled["allocated"]
    assert last["device"] <= settled["device"] + (2 << 20)  # the allocator's granularity; a kilobyte a step is 3.4 MB


def test_the_engine_measured_its_steps_in_both_modes(nested):
    steps, mixed = nested["step_costs"]["steps"], nested["step_costs"]["mixed"]
    sizes = [tokens for tokens, _, _ in steps]
    assert sizes[0] == 1
    assert sizes[-1] == 2048
    assert all(0 < fp16_ms < 1000 and 0 < fp8_ms < 1000 for _, fp16_ms, fp8_ms in steps)
    assert mixed["exact_tokens"][:3] == [64, 65, 128]
    assert all(0 < ms < 1000 for row in mixed["ms"] for ms in row)


def test_kept_timings_are_taken_by_the_next_engine(tmp_path, monkeypatch, nested):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (first,) = scenario([GREEDY])["jobs"]
    kept = {path.name: path.read_bytes() for path in (tmp_path / "nestedfp").iterdir()}
    assert kept
    (second,) = scenario([GREEDY])["jobs"]
    assert second == first, "the same timings, so the same order of additions"
    assert {path.name: path.read_bytes() for path in (tmp_path / "nestedfp").iterdir()} == kept
    assert_same_greedy_tokens(first, nested["jobs"][2])


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_ranks_agree_with_one(plain):
    payload = {
        "engines": [{"model": MODEL, "quantization": "nestedfp", "tensor_parallel_size": 2}],
        "runs": [{"mode": m, "prompts": PROMPTS, "max_tokens": 64} for m in ("fp16", "fp8", "fp16")],
    }
    ((first, rounded, again),) = run_json("engine_scenario.py", payload, 300.0, None)["engines"]
    assert_same_greedy_tokens(first, plain[1])
    assert again["tokens"] == first["tokens"]
    assert rounded["tokens"] != first["tokens"]
    assert all(counts["completion"] == {"fp16": 0, "fp8": 64} for counts in rounded["precision"])
    assert first["step_costs"]
