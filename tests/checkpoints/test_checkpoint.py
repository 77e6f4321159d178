"""Checkpoint files: every damage gets one clear error before anything is loaded."""

import json

import pytest
import torch
from safetensors.torch import save_file

from nestedfp.checkpoint import INDEX_NAME, CheckpointError, fingerprint, list_shards, read_header, verify_shards


@pytest.fixture
def folder(tmp_path):
    save_file({"a.weight": torch.ones(4, 8, dtype=torch.float16)}, tmp_path / "model.safetensors")
    return tmp_path


def test_a_whole_checkpoint_passes(folder):
    verify_shards(folder)
    assert read_header(folder / "model.safetensors")["a.weight"]["shape"] == [4, 8]


@pytest.mark.parametrize("keep", [0, 5, 20, -1])
def test_a_truncated_shard_is_named(folder, keep):
    shard = folder / "model.safetensors"
    shard.write_bytes(shard.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"model\.safetensors.*copy it again"):
        verify_shards(folder)


def test_bytes_behind_the_end_are_refused(folder):
    shard = folder / "model.safetensors"
    shard.write_bytes(shard.read_bytes() + b"x")
    with pytest.raises(CheckpointError, match=r"expected .* bytes by its header, found"):
        verify_shards(folder)


def test_a_damaged_header_is_refused(folder):
    shard = folder / "model.safetensors"
    data = bytearray(shard.read_bytes())
    data[8] = ord("!")
    shard.write_bytes(bytes(data))
    with pytest.raises(CheckpointError, match="damaged safetensors header"):
        verify_shards(folder)


def test_a_missing_shard_of_the_index_is_named(folder):
    (folder / INDEX_NAME).write_text(json.dumps({"weight_map": {"a": "model.safetensors", "b": "other.safetensors"}}))
    with pytest.raises(CheckpointError, match=r"1 of 2 shards.*other\.safetensors"):
        list_shards(folder)


def test_a_folder_without_safetensors_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="safetensors only"):
        list_shards(tmp_path)


def test_the_fingerprint_changes_with_the_file(folder):
    before = fingerprint(folder)
    save_file({"a.weight": torch.ones(4, 9, dtype=torch.float16)}, folder / "model.safetensors")
    assert fingerprint(folder) != before
