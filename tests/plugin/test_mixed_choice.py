"""Where the mixed GEMM multiplies exact and fast rows in one launch: the choice among measured configs, and how it is kept. No GPU.

Run: ``pytest -q tests/plugin/test_mixed_choice.py``
"""

import ctypes

import pytest

from nestedfp.kernels import cuda_library
from nestedfp.kernels.cuda_library import mixed_tiles
from nestedfp.kernels.tuning import gemm_cache, mixed_tuning
from nestedfp.kernels.tuning.mixed_tuning import TWO_LAUNCHES, MixedChoice

pytestmark = pytest.mark.usefixtures("host_library")

SMS, N, K = cuda_library.NUM_SMS_H100, 65536, 5120


@pytest.fixture(autouse=True)
def nothing_taken():
    mixed_tuning.forget()
    yield
    mixed_tuning.forget()


def chosen(exact, fast, n=N, k=K):
    """The config that the operator takes; None: two launches."""
    config = (ctypes.c_int * 4)()
    refused = cuda_library.library().nestedfp_choose_mixed(exact, fast, n, k, SMS, config)
    return None if refused else tuple(config)


def config_for(fast, number=0):
    return list(mixed_tuning.candidates(N, K, mixed_tuning.EXACT_ROWS, fast, SMS))[number]


@pytest.mark.parametrize("fast", mixed_tuning.FAST_ROWS)
def test_candidates_are_valid_for_up_to_64_exact_rows(fast):
    found = list(mixed_tuning.candidates(N, K, mixed_tuning.EXACT_ROWS, fast, SMS))
    assert found
    assert len(set(found)) == len(found)
    for config in found[::7]:
        mixed_tuning.take([MixedChoice(N, K, fast, config)])
        assert chosen(1, fast) == chosen(64, fast) == config
        assert chosen(65, fast) is None


def test_the_next_measured_number_of_fast_rows_counts_and_a_far_one_does_not():
    first, second = config_for(256), config_for(640)
    mixed_tuning.take([MixedChoice(N, K, 256, first), MixedChoice(N, K, 640, second)])
    assert chosen(32, 200) == chosen(32, 256) == first
    assert chosen(32, 500) == chosen(32, 640) == second
    assert chosen(32, 150) is None
    assert chosen(32, 300) is None
    assert chosen(32, 641) is None
    assert chosen(32, 256, n=K, k=N) is None
    mixed_tuning.take([MixedChoice(N, K, 256, TWO_LAUNCHES)])
    assert chosen(32, 256) is None
    mixed_tuning.forget()
    assert chosen(32, 600) is None


def test_a_config_without_work_for_the_blocks_of_the_rest_is_not_taken():
    config = config_for(256)
    room = mixed_tiles()[config[0]][1]
    mixed_tuning.take([MixedChoice(N, K, room + 1, config)])
    assert chosen(32, room + 1) == config
    assert chosen(32, room) is None  # all of them fit into the mixed tiles


@pytest.mark.parametrize(("max_tokens", "largest"), [(64, None), (176, 128), (600, 512), (1000, 896), (8192, 1024)])
def test_numbers_of_fast_rows_are_those_that_steps_have_room_for(max_tokens, largest):
    assert max(mixed_tuning.fast_rows(max_tokens), default=None) == largest


def test_kept_choices_come_back_as_they_were(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    choices = [MixedChoice(N, K, 256, config_for(256)), MixedChoice(N, K, 512, TWO_LAUNCHES)]
    card = gemm_cache.Card("H100", 132, "", "")
    gemm_cache.save("mixed", card, N, K, 512, choices)
    assert gemm_cache.load("mixed", card, N, K, 512, MixedChoice.of_list) == choices
