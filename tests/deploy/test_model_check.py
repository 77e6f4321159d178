"""What would fail in every replica is found before anything starts, and said in one sentence."""

import json
import shutil

import adapters
import pytest
import yaml
from processes import ROOT

from deploy.config import ConfigError, DeployConfig, load
from deploy.startup.model_check import check_model

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's and vLLM's own, while they are imported
SHIPPED = ROOT / "models" / "fairytales-8m"


def configured(tmp_path, model=None, extra=None, **changes):
    data = yaml.safe_load((ROOT / "deploy" / "configs" / "demo.yaml").read_text())
    data["model"] |= {"path": str(model or SHIPPED), **changes}
    data["engine"]["extra"] = extra or {}
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(data))
    return load(path)


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(SHIPPED, folder)
    return folder


def change(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def refused(config):
    with pytest.raises(ConfigError) as caught:
        check_model(config)
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


def test_the_shipped_model_passes_with_arguments_of_engine_and_server(tmp_path):
    check_model(configured(tmp_path, extra={"seed": 1, "enable_auto_tool_choice": True, "tool_call_parser": "hermes"}))


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"tool_call_parser": "herms"}, "engine.extra.tool_call_parser: expected one of "),
        ({"reasoning_parser": "nope!"}, "engine.extra.reasoning_parser: expected one of "),
        ({"enable_auto_tool_choice": True}, "engine.extra.tool_call_parser: expected one of "),
        (
            {"enable_auto_tool_choice": False, "tool_call_parser": "hermes"},
            "engine.extra.enable_auto_tool_choice: expected true beside tool_call_parser, got false; remove one of the two",
        ),
    ],
)
def test_a_parser_that_vllm_does_not_have(tmp_path, extra, said):
    assert said in refused(configured(tmp_path, extra=extra))


def test_adapters_of_the_service_are_looked_at(tmp_path):
    a, b = ({"name": name, "path": adapters.save(tmp_path / name)} for name in "ab")
    adapters.save(tmp_path / "wide", rank=16)
    given = {"enable_lora": True, "max_lora_rank": 8, "lora_modules": [a, b]}
    check_model(configured(tmp_path, extra=given))
    for extra, said in (
        ({"enable_lora": False}, "adapters need enable_lora: true"),
        ({"lora_modules": [a, b | {"name": "a"}]}, "'a' names the model or two adapters"),
        ({"lora_modules": [a | {"name": "fairytales-8m"}]}, "'fairytales-8m' names the model or two adapters"),
        ({"lora_modules": [a | {"path": str(tmp_path / "wide")}]}, "the adapter's rank is 16, expected 1 to 8"),
        ({"lora_modules": [a | {"path": "nowhere"}]}, f"{ROOT}/nowhere: expected an adapter's adapter_config.json"),
        ({"lora_modules": [{"name": "a"}]}, "engine.extra: lora_modules.0.path: "),
    ):
        assert said in refused(configured(tmp_path, extra={**given, **extra}))


def test_a_drafter_is_a_folder_of_the_repository(tmp_path):
    drafts = {"method": "eagle", "model": "models/fairytales-8m", "num_speculative_tokens": 2}
    config = configured(tmp_path, extra={"speculative_config": drafts})
    assert config.engine.extra["speculative_config"] == {**drafts, "model": str(SHIPPED)}
    wrong = configured(tmp_path, extra={"speculative_config": {**drafts, "model": "maker/drafter"}})
    assert f"speculative_config.model: expected a checkpoint's folder, got '{ROOT}/maker/drafter'" in refused(wrong)


def test_a_parser_of_tool_calls_is_used_without_another_word():
    from vllm.tool_parsers import ToolParserManager

    from deploy.app import engine_kwargs

    data = yaml.safe_load((ROOT / "deploy" / "configs" / "demo.yaml").read_text())
    config = DeployConfig.model_validate(data)
    assert "enable_auto_tool_choice" not in engine_kwargs(config)
    data["engine"]["extra"] = {"tool_call_parser": "hermes"}
    kwargs = engine_kwargs(DeployConfig.model_validate(data))
    assert (kwargs["tool_call_parser"], kwargs["enable_auto_tool_choice"]) == ("hermes", True)
    assert "hermes" in ToolParserManager.list_registered()


@pytest.mark.parametrize(
    ("more", "said"), [({}, "NoSuchForCausalLM"), ({"model_type": "nosuch"}, "model type `nosuch`")]
)
def test_an_unknown_model(tmp_path, model, more, said):
    change(model, architectures=["NoSuchForCausalLM"], **more)
    sentence = refused(configured(tmp_path, model))
    assert said in sentence
    assert "serve a model that vLLM" in sentence


def test_a_missing_tokenizer(tmp_path, model):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (model / name).unlink()
    assert "its tokenizer cannot be loaded" in refused(configured(tmp_path, model))


def test_a_context_longer_than_the_models(tmp_path):
    assert "lower model.max_model_len (99999)" in refused(configured(tmp_path, max_model_len=99999))


def test_an_argument_that_vllm_does_not_have_and_the_one_that_was_meant(tmp_path):
    sentence = refused(configured(tmp_path, extra={"tool_cal_parser": "hermes"}))
    assert sentence == "engine.extra: vLLM has no argument 'tool_cal_parser', but 'tool_call_parser'"


def test_a_structured_argument_that_vllm_does_not_take(tmp_path):
    given = {"structured_outputs_config": {"backend": "nope"}}
    assert refused(configured(tmp_path, extra=given)).startswith(
        "engine.extra: structured_outputs_config.backend: Input should be 'auto'"
    )


def test_the_name_of_a_model_hub(tmp_path):
    with pytest.raises(ConfigError, match="hf download some/model --local-dir FOLDER"):
        configured(tmp_path, "some/model")


@pytest.mark.parametrize("runner", ["pooling", "draft"])
def test_a_model_that_makes_no_text(tmp_path, model, runner):
    assert "makes no text" in refused(configured(tmp_path, model, extra={"runner": runner}))
