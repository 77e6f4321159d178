"""Token counts on their way from the engine's scheduler to the response, over vLLM's own scheduler and front end."""

import copy

from vllm_parts import Engine, FrontEnd, ParentRequest, SamplingParams, engine_request

from nestedfp.vllm_plugin.frontend import collected, total, usage_of
from nestedfp.vllm_plugin.scheduling.accounting import COUNTS_KEY, TokenCounts


def served(*requests, mode="fp16", engine=None, front=None):
    """Run requests to their end; return the front end, the engine's outputs and what was collected."""
    engine, front = engine or Engine(), front or FrontEnd()
    engine.direct(mode)
    with collected() as counts:
        for request in requests:
            front.add(request)
            engine.add(request)
    outputs = []
    while engine.scheduler.has_unfinished_requests():
        outputs += (step := engine.step())
        front.receive(copy.deepcopy(step))
    return front, outputs, counts


def test_only_the_output_that_finishes_a_request_carries_counts():
    _, outputs, _ = served(engine_request("a", 20), engine_request("b", 30, max_tokens=2))
    with_counts = [o.request_id for o in outputs if COUNTS_KEY in (o.kv_transfer_params or {})]
    assert with_counts == ["b", "a"]
    assert [o.request_id for o in outputs if o.finished] == ["b", "a"]


def test_a_request_that_the_front_end_may_end_carries_counts_with_every_output():
    engine = Engine()
    engine.add(engine_request("a", 20, stop=["x"], detokenize=True))
    assert all(COUNTS_KEY in o.kv_transfer_params for o in engine.run())


def test_the_finishing_output_has_the_counts_and_nothing_of_ours_is_left_in_vllms_fields():
    front, _, counts = served(engine_request("a", 20), mode="fp8")
    output = front.taken("a")
    assert output.finished
    assert output.kv_transfer_params is None
    assert usage_of(counts["a"]) == {
        "prompt": {"fp16": 0, "fp8": 20, "cached": {"fp16": 0, "fp8": 0}},
        "completion": {"fp16": 0, "fp8": 4},
    }


def test_one_request_id_twice_in_flight_keeps_two_accounts():
    _, _, counts = served(
        engine_request("x-1", 20, external_id="x", max_tokens=2), engine_request("x-2", [7] * 40, external_id="x")
    )
    first, second = counts["x-1"], counts["x-2"]
    assert (first.prompt_fp16, first.completion_fp16) == (20, 2)
    assert (second.prompt_fp16, second.completion_fp16) == (40, 4)


def test_each_of_n_sequences_says_what_it_computed_itself():
    engine, front = Engine(), FrontEnd()
    request = engine_request("p", 40, n=2)
    parent = ParentRequest(request)
    with collected() as counts:
        for index in range(2):
            child = copy.copy(request)
            child.request_id, child.sampling_params = parent.get_child_info(index)
            # The second one may not read the cache, as with prompt log-probabilities: it computes the prompt again.
            child.sampling_params = SamplingParams(
                max_tokens=4, ignore_eos=True, detokenize=False, skip_reading_prefix_cache=bool(index)
            )
            front.add(child, parent, index)
            engine.add(child)
    while engine.scheduler.has_unfinished_requests():
        front.receive(engine.step())
    assert total(counts.values()) == TokenCounts(prompt_fp16=80, completion_fp16=8)


def test_of_several_prompts_the_second_may_end_first_and_has_its_counts():
    engine, front = Engine(), FrontEnd()
    with collected() as counts:
        for request in (engine_request("c-0", 20, max_tokens=6), engine_request("c-1", [7] * 33, max_tokens=2)):
            front.add(request)
            engine.add(request)
    front.receive(engine.step())
    assert counts == {}
    front.receive(engine.step())
    assert total(counts.values()) == TokenCounts(prompt_fp16=33, completion_fp16=2)
    while engine.scheduler.has_unfinished_requests():
        front.receive(engine.step())
    assert total(counts.values()) == TokenCounts(prompt_fp16=53, completion_fp16=8)


def test_nothing_stays_behind_when_a_request_is_aborted():
    engine, front = Engine(), FrontEnd()
    with collected() as counts:
        request = engine_request("a", 20, stop=["x"], detokenize=True)
        front.add(request)
        engine.add(request)
    front.receive(engine.step())
    front.processor.abort_requests(["a"], internal=True)
    assert not front.processor.request_states
    assert total(counts.values()).completion_fp16 == 1, "what the engine had said of it"


def test_what_is_collected_in_one_context_is_not_in_another():
    _, _, first = served(engine_request("a", 20))
    _, _, second = served(engine_request("a", 20))
    assert len(first) == len(second) == 1
