"""Requests that would hurt others or break a promise are refused before the engine sees them: VLLMValidationError, HTTP 400."""

import pytest
from vllm_parts import (
    Engine,
    InputProcessor,
    SamplingParams,
    VLLMValidationError,
    engine_config,
    engine_request,
)

from nestedfp.vllm_plugin.frontend import keep_encodings_apart

VOCABULARY = 4096  # of the shipped model


@pytest.fixture(scope="module")
def processor():
    return InputProcessor(engine_config())


def process(processor, ids, params=None, **more):
    return processor.process_inputs(
        "a",
        {"type": "token", "prompt_token_ids": ids},
        params or SamplingParams(),
        supported_tasks=("generate",),
        **more,
    )


def test_every_id_of_the_vocabulary_passes(processor):
    assert process(processor, [0, VOCABULARY - 1]).prompt_token_ids == [0, VOCABULARY - 1]


@pytest.mark.parametrize("ids", [[VOCABULARY], [5, -1], [1, 2**31], [1, 2, VOCABULARY + 1]])
def test_an_id_that_the_model_has_no_embedding_for_is_refused(processor, ids):
    with pytest.raises(VLLMValidationError, match="out of"):
        process(processor, ids)


def test_the_position_and_the_range_are_named(processor):
    with pytest.raises(VLLMValidationError, match=r"oken id 4096 (at position 2 .* expected 0 to 4095|is out of)"):
        process(processor, [1, 2, VOCABULARY])


@pytest.mark.parametrize(
    "params",
    [
        {"logit_bias": {VOCABULARY: 1.0}},
        {"logit_bias": {-1: 1.0}},
        {"allowed_token_ids": [VOCABULARY]},
        {"stop_token_ids": [VOCABULARY]},
        {"stop_token_ids": [-1]},
        {"logprob_token_ids": [VOCABULARY]},
    ],
)
def test_ids_outside_the_vocabulary_are_refused_wherever_they_stand(processor, params):
    with pytest.raises(VLLMValidationError, match=r"vocab|token"):
        process(processor, [1], SamplingParams(**params))


def test_bad_words_of_unknown_ids_are_refused(processor, monkeypatch):
    monkeypatch.setattr(type(processor.model_config), "get_vocab_size", lambda self: 300)
    with pytest.raises(VLLMValidationError, match="bad_words"):
        process(processor, [1], SamplingParams(bad_words=["woodcutter"]))


@pytest.mark.parametrize("pin", ["fp8", 16, ["fp16"]])
def test_a_wrong_pin_is_refused(processor, pin):
    with pytest.raises(VLLMValidationError, match="precision must be 'exact'"):
        process(processor, [1], SamplingParams(extra_args={"precision": pin}))


def test_a_streaming_session_is_refused(processor):
    with pytest.raises(VLLMValidationError, match="no streaming sessions; send each input"):
        process(processor, [1], SamplingParams(), resumable=True)


def test_pooling_requests_can_be_pinned():
    from vllm import PoolingParams

    engine = Engine()
    request = engine_request("e", 20, pooling_params=PoolingParams(task="embed", extra_kwargs={"precision": "fp16"}))
    engine.add(request)
    engine.add(engine_request("g", [7] * 20))
    engine.direct("fp8")
    assert engine.schedule().nestedfp_mode.value == "fp16"


def test_what_an_encoder_made_for_others_is_not_read_by_a_pinned_request():
    from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange

    found = []
    for name in "ab":
        request = engine_request(name, 20)
        request.mm_features = [MultiModalFeatureSpec(None, "image", "hash", PlaceholderRange(offset=2, length=4))]
        keep_encodings_apart(request)
        found.append((request.mm_features[0].identifier, request.mm_features[0].mm_hash))
    assert found[0] == found[1], "pinned requests share theirs"
    assert found[0][0] != "hash" == found[0][1], "the processor's cache is everybody's"
