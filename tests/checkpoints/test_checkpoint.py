"""Checkpoint files: every damage gets one clear error before anything is loaded."""

import json
import struct

import pytest
import torch
from safetensors.torch import save_file

from nestedfp.checkpoint import INDEX_NAME, CheckpointError, fingerprint, list_shards, read_header, read_tensors


@pytest.fixture
def folder(tmp_path):
    save_file({"a.weight": torch.ones(4, 8, dtype=torch.float16)}, tmp_path / "model.safetensors")
    return tmp_path


def test_a_whole_checkpoint_passes(folder):
    read_tensors(folder)
    assert read_header(folder / "model.safetensors")[0]["a.weight"]["shape"] == [4, 8]


@pytest.mark.parametrize("keep", [0, 5, 20, -1])
def test_a_truncated_shard_is_named(folder, keep):
    shard = folder / "model.safetensors"
    shard.write_bytes(shard.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"model\.safetensors.*copy it again"):
        read_tensors(folder)


def test_bytes_behind_the_end_are_refused(folder):
    shard = folder / "model.safetensors"
    shard.write_bytes(shard.read_bytes() + b"x")
    with pytest.raises(CheckpointError, match=r"damaged safetensors file .*not fully covered"):
        read_tensors(folder)


def test_a_missing_shard_of_the_index_is_named(folder):
    (folder / INDEX_NAME).write_text(json.dumps({"weight_map": {"a": "model.safetensors", "b": "other.safetensors"}}))
    with pytest.raises(CheckpointError, match=r"1 of 2 shards.*other\.safetensors"):
        list_shards(folder)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{}",
        '{"weight_map": []}',
        "\ufeff{}",
        "[" * 99999,
    ],
)
def test_an_index_that_is_none_is_named(folder, text):
    (folder / INDEX_NAME).write_text(text, encoding="utf-8")
    with pytest.raises(CheckpointError, match=rf"{INDEX_NAME}: .*copy the"):
        read_tensors(folder)


@pytest.mark.parametrize(
    "shard",
    ["../model.safetensors", "/model.safetensors", "config.json", 3, ["a"]],
)
def test_a_shard_that_is_no_file_beside_the_index_is_refused(folder, shard):
    (folder / INDEX_NAME).write_text(json.dumps({"weight_map": {"a.weight": shard}}))
    with pytest.raises(CheckpointError, match=r"a\.weight is said to be in .* expected the name of a"):
        read_tensors(folder)


def test_a_tensor_that_is_not_in_the_shard_that_the_index_names_is_refused(folder):
    save_file({"b.weight": torch.ones(2)}, folder / "other.safetensors")
    places = {"a.weight": "model.safetensors", "b.weight": "model.safetensors", "c": "other.safetensors"}
    (folder / INDEX_NAME).write_text(json.dumps({"weight_map": places}))
    with pytest.raises(CheckpointError, match=r"2 tensors are not in the shards that it names for them: b\.weight, c;"):
        read_tensors(folder)


def test_a_tensor_in_two_shards_is_refused(folder):
    save_file({"a.weight": torch.zeros(4, 8)}, folder / "other.safetensors")
    with pytest.raises(CheckpointError, match=r"a\.weight is in two shards, model\.safetensors and other\.safetensors"):
        read_tensors(folder)


@pytest.mark.parametrize(
    "others",
    [
        {},
        {"a.weight_lower": torch.zeros(4, 9, dtype=torch.uint8)},
        {"a.weight_lower": torch.zeros(4, 8)},
        {"a.weight_lower": torch.zeros(4, 8, dtype=torch.uint8), "a.weight": torch.zeros(4, 8)},
    ],
)
def test_half_of_a_nested_layer_is_refused(tmp_path, others):
    save_file({"a.weight_upper": torch.zeros(4, 8, dtype=torch.uint8), **others}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="half of a nested layer"):
        read_tensors(tmp_path)


SOUND = {"dtype": "F16", "shape": [2], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    "header",
    [
        [],
        {"a": {**SOUND, "data_offsets": [0, float("inf")]}},
        {"a": {**SOUND, "shape": [3]}},
        {"a": {"dtype": "F16"}},
        {"a": SOUND, "b": {**SOUND, "data_offsets": [8, 12]}},
    ],
)
def test_a_header_that_describes_no_data_is_refused(tmp_path, header):
    raw = json.dumps(header).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(raw)) + raw + bytes(4))
    with pytest.raises(CheckpointError, match="damaged safetensors file") as caught:
        read_tensors(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_folder_without_safetensors_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="safetensors only"):
        list_shards(tmp_path)


def test_the_fingerprint_changes_with_the_file(folder):
    before = fingerprint(folder)
    save_file({"a.weight": torch.ones(4, 9, dtype=torch.float16)}, folder / "model.safetensors")
    assert fingerprint(folder) != before
