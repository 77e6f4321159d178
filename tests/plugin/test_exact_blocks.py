"""What FP8 steps wrote into the prefix cache: told apart, skipped under an FP16 directive, never read by a pinned request."""

from vllm_parts import BLOCK, Engine, engine_request

PROMPT = list(range(200, 200 + 4 * BLOCK + 3))  # four whole blocks and a bit
PINNED = {"extra_args": {"precision": "fp16"}}


def served(engine, mode, prompt=PROMPT, name=None, **params):
    """Serve one request under a directive; return its counts."""
    engine.direct(mode)
    request = engine.add(engine_request(name or f"{mode}-{id(prompt)}-{engine.scheduler._arrivals}", prompt, **params))
    engine.run()
    return request.nestedfp_tokens.counts(request.num_output_tokens)


def test_what_an_fp8_step_wrote_is_shared_during_the_burst_and_skipped_after_it():
    engine = Engine()
    burst = served(engine, "fp8")
    assert burst.prompt_fp8 == len(PROMPT)
    again = served(engine, "fp8")
    assert (again.cached_fp8, again.cached_fp16) == (4 * BLOCK, 0)
    after = served(engine, "fp16")
    assert (after.prompt_fp16, after.cached_fp8, after.cached_fp16) == (len(PROMPT), 0, 0)


def test_after_the_first_exact_answer_the_exact_blocks_are_shared_again():
    engine = Engine()
    served(engine, "fp8")
    served(engine, "fp16")
    assert served(engine, "fp16").cached_fp16 == 4 * BLOCK, "beside the FP8 blocks of the same tokens"


def test_a_prefix_computed_before_the_burst_stays_exact():
    engine = Engine()
    served(engine, "fp16", PROMPT[: 2 * BLOCK])
    mixed = served(engine, "fp8")
    assert (mixed.cached_fp16, mixed.prompt_fp8) == (2 * BLOCK, 2 * BLOCK + 3)
    after = served(engine, "fp16")
    assert (after.cached_fp16, after.prompt_fp16) == (2 * BLOCK, 2 * BLOCK + 3)


def test_two_requests_of_one_fp8_step_share_blocks_that_this_step_writes():
    engine = Engine()
    engine.direct("fp8")
    requests = [engine.add(engine_request(name, PROMPT)) for name in "ab"]
    engine.run()
    second = requests[1].nestedfp_tokens.counts(4)
    assert (second.cached_fp8, second.cached_fp16) == (4 * BLOCK, 0)


def test_a_block_that_is_used_again_loses_its_mark():
    engine = Engine(blocks=12)
    served(engine, "fp8")
    other = [token + 1000 for token in PROMPT]
    served(engine, "fp16", other)
    served(engine, "fp16", [token + 1000 for token in other])  # every block has been used again by now
    assert served(engine, "fp16", [token + 1000 for token in other]).cached_fp16 == 4 * BLOCK


def test_a_pinned_request_reads_exact_blocks_alone_and_everybody_reads_its_own():
    engine = Engine()
    served(engine, "fp8")
    pinned = served(engine, "fp8", **PINNED)
    assert (pinned.prompt_fp16, pinned.cached_fp16, pinned.cached_fp8) == (len(PROMPT), 0, 0)
    assert served(engine, "fp8", **PINNED).cached_fp16 == 4 * BLOCK
    assert served(engine, "fp8").cached_fp16 == 4 * BLOCK
