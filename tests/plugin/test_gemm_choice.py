"""The choice of GEMM configs by timings: what they change, how they are kept, what is timed. No GPU and no nvcc.

Run: ``pytest -q tests/plugin/test_gemm_choice.py``
"""

import logging

import pytest

from nestedfp.kernels import cuda_library
from nestedfp.kernels.cuda_library import Config
from nestedfp.kernels.tuning import gemm_cache, gemm_tuning
from nestedfp.kernels.tuning.gemm_cache import Card
from nestedfp.kernels.tuning.gemm_tuning import Timing

pytestmark = pytest.mark.usefixtures("host_library")

SMS = cuda_library.NUM_SMS_H100
SHAPE = (6144, 4096)
CARD = Card("NVIDIA H100 80GB HBM3", 132, "1980 MHz, 2619 MHz, 700.00 W, 580.1", "0123456789abcdef")


@pytest.fixture(autouse=True)
def no_timings():
    gemm_tuning.forget()
    yield
    gemm_tuning.forget()


@pytest.fixture(autouse=True)
def cache_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "nestedfp"


def predicted(precision, m, n, k, factor=lambda config: 1.0):
    """Timings of the candidates as the cost model predicts them, times a factor."""
    return [
        Timing(precision, m, n, k, c, factor(c) * cuda_library.predict_us(precision, m, n, k, c))
        for c in gemm_tuning.candidates(precision, m, n, k, SMS)
    ]


class SlowingCard:
    """In Chain's place: a card that slows down with every timing, as one that meets its power cap."""

    slower_each: float
    true_us: dict[Config, float]

    def __init__(self, precision, m, weights, num_sms):
        self.timed = 0

    def gemm_us(self, config):
        self.timed += 1
        return self.true_us[config] * (1 + min(0.1, self.slower_each * self.timed))


class Weight:
    """What a timing asks of a weight."""

    n, k = SHAPE


def test_beyond_768_tokens_only_layers_of_few_outputs_are_timed(monkeypatch):
    monkeypatch.setattr(gemm_tuning, "rotation", list)
    monkeypatch.setattr(gemm_tuning, "time_cell", lambda precision, m, weights, sms: [(weights[0], m)])
    found = gemm_tuning.tune({(28672, 4096): ["large"], (4096, 4096): ["small"]}, [512, 768, 1152], SMS)
    timed = {pair for timings in found.values() for pair in timings}
    assert timed == {("large", 512), ("large", 768), ("small", 512), ("small", 768), ("small", 1152)}


@pytest.mark.parametrize("slower_each", [0.0, 0.005, 0.02])
@pytest.mark.parametrize("best", [0, 4, 9])
def test_a_card_that_slows_down_meanwhile_does_not_choose_what_was_timed_first(monkeypatch, slower_each, best):
    found = gemm_tuning.candidates(cuda_library.FP16, 448, *SHAPE, SMS)
    true_us = {config: 100 * (1 if i == best else 1.03 + 0.01 * i) for i, config in enumerate(found)}
    monkeypatch.setattr(SlowingCard, "slower_each", slower_each, raising=False)
    monkeypatch.setattr(SlowingCard, "true_us", true_us, raising=False)
    monkeypatch.setattr(gemm_tuning, "Chain", SlowingCard)
    timings = {t.config: t.us for t in gemm_tuning.time_cell(cuda_library.FP16, 448, [Weight()], SMS)}
    assert set(timings) == set(found)
    assert min(timings, key=timings.__getitem__) == found[best]
    ratios = [us / true_us[config] for config, us in timings.items()]
    assert max(ratios) < 1.06 * min(ratios), "errors that the cost model would take for the configs'"
    if not slower_each:
        assert timings == pytest.approx(true_us)


@pytest.mark.parametrize("precision", [cuda_library.FP16, cuda_library.FP8])
@pytest.mark.parametrize("m", [1, 100, 600, 3000])
def test_the_fastest_timed_config_is_chosen_and_forgotten_again(precision, m):
    n, k = SHAPE
    before = cuda_library.choose(precision, m, n, k)
    slowest = gemm_tuning.candidates(precision, m, n, k, SMS)[-1]
    timings = predicted(precision, m, n, k, lambda config: 0.3 if config == slowest else 1.0)
    assert gemm_tuning.take(timings, SMS) == len(timings)
    assert cuda_library.choose(precision, m, n, k) == slowest != before
    gemm_tuning.forget()
    assert cuda_library.choose(precision, m, n, k) == before


def test_a_token_count_between_two_timed_ones_profits_from_both():
    n, k = SHAPE
    favourite = cuda_library.choose(cuda_library.FP16, 600, n, k)
    others = [c for _, c in cuda_library.valid_configs(cuda_library.FP16, 600, n, k) if c.tile != favourite.tile]
    better = min(others, key=lambda c: cuda_library.predict_us(cuda_library.FP16, 600, n, k, c))

    def slow_favourite(config):
        return 1.5 if config.tile == favourite.tile else 1.0

    for m in (512, 640):
        timings = predicted(cuda_library.FP16, m, n, k, slow_favourite)
        for config in (favourite, better):
            us = cuda_library.predict_us(cuda_library.FP16, m, n, k, config)
            timings += [Timing(cuda_library.FP16, m, n, k, config, us * slow_favourite(config))] if us > 0 else []
        gemm_tuning.take(timings, SMS)
    assert cuda_library.choose(cuda_library.FP16, 600, n, k).tile != favourite.tile


def test_a_config_that_was_not_timed_does_not_win_by_a_prediction_that_is_a_little_lower():
    """Times of an H200, on which one whose prediction was the lowest, and that was not timed, took 289 us."""
    m, n, k = 640, 28672, 4096
    times_us = {(47, 0, 0, 1): 247.3, (43, 2, 1, 0): 246.2, (13, 1, 0, 0): 262.4, (40, 0, 0, 1): 254.8}
    timings = [Timing(cuda_library.FP16, m, n, k, Config(*config), us) for config, us in times_us.items()]
    assert gemm_tuning.take(timings, SMS) == len(timings)
    assert cuda_library.choose(cuda_library.FP16, m, n, k) == (43, 2, 1, 0)


def test_steps_far_larger_than_any_timed_one_are_left_to_table_and_model():
    n, k = SHAPE
    before = {m: cuda_library.choose(cuda_library.FP16, m, n, k) for m in (900, 1024, 8192)}
    slow = [Timing(cuda_library.FP16, 768, n, k, config, 1e4) for config in before.values()]
    gemm_tuning.take(
        [*slow, *predicted(cuda_library.FP16, 768, n, k, lambda c: 3.0 if c in before.values() else 0.5)], SMS
    )
    assert cuda_library.choose(cuda_library.FP16, 900, n, k) != before[900]
    assert {m: cuda_library.choose(cuda_library.FP16, m, n, k) for m in (1024, 8192)} == {
        m: before[m] for m in (1024, 8192)
    }


def test_timings_of_configs_that_these_kernels_do_not_have_are_not_taken():
    n, k = SHAPE
    assert gemm_tuning.take([Timing(cuda_library.FP16, 16, n, k, Config(99), 1.0)], SMS) == 0


def test_candidates_are_promising_and_of_several_tiles():
    for m in (1, 64, 300, 4096):
        found = gemm_tuning.candidates(cuda_library.FP16, m, *SHAPE, SMS)
        assert len(found) == gemm_tuning.CANDIDATES
        assert len({config.tile for config in found}) >= 2
        best = min(us for us, _ in cuda_library.valid_configs(cuda_library.FP16, m, *SHAPE))
        assert cuda_library.predict_us(cuda_library.FP16, m, *SHAPE, found[0]) == best


def save(reach, rows):
    gemm_cache.save("gemm", CARD, *SHAPE, reach, rows)


def load(reach, card=CARD, shape=SHAPE, kind="gemm", of_list=Timing.of_list):
    return gemm_cache.load(kind, card, *shape, reach, of_list)


def test_kept_timings_come_back_as_they_were_for_smaller_steps_of_this_shape_and_card():
    timings = predicted(cuda_library.FP8, 48, *SHAPE)
    save(2048, timings)
    found = load(2048)
    assert found == timings
    assert load(16) == found
    assert load(8192) is load(2048, shape=(4096, 4096)) is load(2048, kind="mixed") is None
    assert load(2048, CARD._replace(limits=CARD.limits.replace("700", "400"))) is None
    assert load(2048, CARD._replace(kernels="fedcba9876543210")) is None


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "{",
        "[]",
        '{"reach": 9}',
        '{"reach": 9, "rows": [[1, 2]]}',
    ],
)
def test_a_damaged_file_costs_one_warning_and_is_written_anew(damage, caplog):
    save(9, [])
    path = gemm_cache.path_of("gemm", CARD, *SHAPE)
    path.write_text(damage)
    with caplog.at_level(logging.WARNING, "vllm.nestedfp"):
        logging.getLogger("vllm.nestedfp").addHandler(caplog.handler)
        assert load(9) is None
        logging.getLogger("vllm.nestedfp").removeHandler(caplog.handler)
    assert len({record.getMessage() for record in caplog.records}) == 1
    assert str(path) in caplog.text
    save(9, predicted(cuda_library.FP16, 9, *SHAPE))
    assert load(9)


def test_a_folder_that_cannot_be_written_costs_a_warning_only(cache_folder, caplog, monkeypatch):
    cache_folder.write_text("a file where the folder should be")
    # Whatever the tests before it made of vLLM's loggers.
    caplog.set_level(logging.WARNING, "vllm.nestedfp")
    monkeypatch.setattr(logging.getLogger("vllm.nestedfp"), "disabled", False)
    logging.getLogger("vllm.nestedfp").addHandler(caplog.handler)
    save(9, [])
    logging.getLogger("vllm.nestedfp").removeHandler(caplog.handler)
    assert "cannot be written" in caplog.text
