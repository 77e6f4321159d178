"""Steps of exact and fast rows on CUDA tensors: two launches give the bits of two steps, one launch the same up to rounding.

Run: ``pytest -q -m gpu tests/kernels/test_gpu_mixed_rows.py``
"""

import itertools

import pytest
import torch

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("hopper_operators", "fp16_mode")]

EPSILON = 1e-5
MOST_EXACT = 4e-4  # of the norm, by the order in which FP32 adds up, rounded to FP16
ROWS = [(1, 1), (50, 600), (64, 130), (3, 257), (130, 70)]


@pytest.fixture(autouse=True)
def two_launches():
    from nestedfp.kernels.tuning import mixed_tuning

    mixed_tuning.forget()
    yield
    mixed_tuning.forget()


def layer(n, k, outliers=0):
    """A layer's operands as ``ops.linear`` takes them, without x."""
    from nestedfp.kernels import ops
    from nestedfp.nested_weight import nest

    weight = (torch.randn(n, k) * 0.02).half()
    weight.view(-1)[torch.randperm(n * k)[:outliers]] = 3.25
    nested = nest(weight.cuda())
    lists = nested.outlier_rows, nested.outlier_cols, nested.outlier_deltas
    return *ops.pack(nested.upper, nested.lower), torch.randn(n).half().cuda(), *lists


def in_mode(name, run):
    from nestedfp.kernels import ops
    from nestedfp.modes import Mode

    ops.set_mode(Mode[name])
    found = run()
    torch.cuda.synchronize()
    return found


def mixed(exact, fast, run):
    """What ``run`` gives where the first ``exact`` rows are exact and the others fast."""
    from nestedfp.kernels import ops

    ops.set_mixed(torch.arange(exact + fast) < exact)
    found = run()
    torch.cuda.synchronize()
    return found


@pytest.mark.parametrize(("exact", "fast"), ROWS)
@pytest.mark.parametrize(
    ("n", "k", "quantize", "outliers"),
    [(512, 1024, True, 0), (333, 520, True, 40), (333, 523, True, 0), (512, 1024, False, 9)],
)
def test_two_launches_give_the_bits_of_a_step_of_each_precision(exact, fast, n, k, quantize, outliers):
    from nestedfp.kernels import ops

    operands, x = layer(n, k, outliers), torch.randn(exact + fast, k).half().cuda()
    found = mixed(exact, fast, lambda: ops.linear(x, *operands, n, k, quantize))
    assert torch.equal(found[:exact], in_mode("FP16", lambda: ops.linear(x[:exact], *operands, n, k, quantize)))
    assert torch.equal(found[exact:], in_mode("FP8", lambda: ops.linear(x[exact:], *operands, n, k, quantize)))


def check_carrier(found, exact, fast, run):
    """Compare the parts of a mixed carrier with carriers of steps of one precision."""
    carrier, scales, *total = found
    k = carrier.shape[-1]
    halves, _, *sums = in_mode("FP16", run)
    whole, all_scales, *_ = in_mode("FP8", run)
    assert torch.equal(carrier[:exact], halves[:exact])
    codes = carrier.view(torch.uint8).flatten()[2 * k * exact :][: fast * k]
    assert torch.equal(codes, whole.view(torch.uint8).flatten()[exact * k : (exact + fast) * k])
    assert torch.equal(scales[exact:], all_scales[exact:])
    assert all(map(torch.equal, total, sums))


@pytest.mark.parametrize(("exact", "fast"), ROWS)
@pytest.mark.parametrize("k", [64, 5120])
def test_carriers_hold_exact_rows_and_then_the_codes_of_fast_ones(exact, fast, k):
    from nestedfp.kernels import ops

    rows = exact + fast
    x, residual, weight = (torch.randn(*shape, k).half().cuda() for shape in ((rows,), (rows,), ()))
    gated = torch.randn(rows, 2 * k).half().cuda()
    for run in (
        lambda: ops.rms_norm(x, weight, EPSILON),
        lambda: ops.add_rms_norm(x, residual, weight, EPSILON),
        lambda: ops.silu_and_mul(gated),
    ):
        check_carrier(mixed(exact, fast, run), exact, fast, run)


def difference(one, two):
    """Of two products, relative to the norm: Hopper adds up FP8 products in some 14 bits, so that single elements differ more."""
    return float((one.double() - two.double()).norm() / two.double().norm())


def carried(x, operands, n, k):
    from nestedfp.kernels import ops

    carrier, scales = ops.rms_norm(x, torch.ones(k).half().cuda(), EPSILON)
    return ops.linear_carried(carrier, scales, *operands[:3], n, k)


@pytest.mark.parametrize(("exact", "fast"), [(50, 600), (64, 130), (1, 64), (20, 400)])
def test_one_launch_gives_what_two_give_and_the_same_bits_every_time(exact, fast):
    from nestedfp.kernels import ops
    from nestedfp.kernels.tuning import mixed_tuning
    from nestedfp.kernels.tuning.mixed_tuning import MixedChoice

    n, k, sms = 1024, 5120, torch.cuda.get_device_properties().multi_processor_count
    operands, x = layer(n, k), torch.randn(exact + fast, k).half().cuda()
    two = mixed(exact, fast, lambda: carried(x, operands, n, k))
    halves = in_mode("FP16", lambda: ops.rms_norm(x, torch.ones(k).half().cuda(), EPSILON)[0])
    configs = list(mixed_tuning.candidates(n, k, exact, fast, sms))
    by_tile = {tile: list(found) for tile, found in itertools.groupby(configs, lambda config: config[0])}
    assert by_tile
    for config in itertools.chain(*(found[:: max(1, len(found) // 6)] for found in by_tile.values())):
        mixed_tuning.take([MixedChoice(n, k, fast, config)])
        one = mixed(exact, fast, lambda: carried(x, operands, n, k))
        assert difference(one[:exact], two[:exact]) < MOST_EXACT, config
        assert difference(one[exact:], two[exact:]) < mixed_tuning.MOST_ERROR, config
        assert torch.equal(one, mixed(exact, fast, lambda: carried(x, operands, n, k)))
        assert torch.equal(one, mixed(exact, fast, lambda: ops.linear(halves, *operands, n, k, True)))


@pytest.mark.parametrize(("exact", "outliers"), [(32, 9), (65, 0)])
def test_a_layer_with_outliers_and_more_exact_rows_than_a_tile_has_take_two_launches(exact, outliers):
    from nestedfp.kernels import ops
    from nestedfp.kernels.tuning import mixed_tuning
    from nestedfp.kernels.tuning.mixed_tuning import MixedChoice

    n, k, fast, sms = 512, 1024, 256, torch.cuda.get_device_properties().multi_processor_count
    operands, x = layer(n, k, outliers), torch.randn(exact + fast, k).half().cuda()
    two = mixed(exact, fast, lambda: ops.linear(x, *operands, n, k, True))
    mixed_tuning.take([MixedChoice(n, k, fast, next(mixed_tuning.candidates(n, k, 32, fast, sms)))])
    assert torch.equal(mixed(exact, fast, lambda: ops.linear(x, *operands, n, k, True)), two)


def test_a_shape_is_measured_and_its_choice_taken():
    from nestedfp.kernels.cuda_library import PackedWeight
    from nestedfp.kernels.tuning import mixed_tuning

    n, k, sms = 4096, 4096, torch.cuda.get_device_properties().multi_processor_count
    upper, lower, *_ = layer(n, k)
    lines = []
    found = mixed_tuning.tune({(n, k): [PackedWeight(upper, lower, n, k)]}, 600, sms, 3.0, lines.append)
    assert [choice.fast_rows for choice in found[n, k]] == mixed_tuning.fast_rows(600)
    assert len(lines) == 1
