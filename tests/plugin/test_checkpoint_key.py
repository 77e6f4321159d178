"""What goes into the key of vLLM's cache of compiled graphs for the weights: two checkpoints must never share a graph."""

import os
import shutil

from vllm_parts import MODEL, engine_config

from nestedfp.vllm_plugin.wiring import checkpoint_key


def of_a_hub(commit):
    """The configuration of a model that was named by its id at a hub."""
    config = engine_config()
    config.model_config.model = "somebody/some-model"
    config.model_config.hf_config._commit_hash = commit
    return config


def test_a_hubs_model_at_a_known_commit_has_one_key_and_another_at_another_commit():
    key = checkpoint_key(of_a_hub("a" * 40))
    assert checkpoint_key(of_a_hub("a" * 40)) == key
    assert checkpoint_key(of_a_hub("b" * 40)) != key
    other = of_a_hub("a" * 40)
    other.model_config.model = "somebody/other-model"
    assert checkpoint_key(other) != key


def test_a_hubs_model_whose_commit_nobody_knows_has_another_key_each_time():
    config = of_a_hub(None)
    assert len({checkpoint_key(config) for _ in range(10)}) == 10


def test_random_weights_share_no_key_with_a_checkpoint_and_a_checkpoint_none_with_its_successor(tmp_path):
    model = tmp_path / "model"
    shutil.copytree(MODEL, model)
    config = engine_config(model=str(model))
    key = checkpoint_key(config)
    assert checkpoint_key(engine_config(model=str(model))) == key
    assert checkpoint_key(engine_config(model=str(model), load_format="dummy")) != key
    os.utime(model / "model.safetensors", ns=(0, 1))  # as of a file that took its place
    assert checkpoint_key(config) != key
