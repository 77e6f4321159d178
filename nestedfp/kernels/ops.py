"""The compiled operators, typed. Importing this module loads ``nestedfp_C`` and registers ``torch.ops.nestedfp``.

Every tensor operator is functional, has a fake implementation, and is opaque to torch.compile. ``linear``, and what makes and
reads a carrier (``linear_carried``), read the mode when they run, so that one compiled graph serves both modes.
"""

from importlib.util import find_spec
from typing import Any

import torch
import torch.library

from nestedfp.kernels import activations
from nestedfp.modes import CODES, Mode

_BUILD = "build it with 'pip install --no-build-isolation .' in the environment whose torch will run it"
_LIBRARY = find_spec("nestedfp_C")
if _LIBRARY is None or _LIBRARY.origin is None:
    raise ImportError(f"nestedfp.kernels.ops: the compiled library nestedfp_C is not installed; {_BUILD}")
try:
    torch.ops.load_library(_LIBRARY.origin)  # type: ignore[no-untyped-call]
except OSError as error:
    raise ImportError(f"nestedfp.kernels.ops: the compiled library cannot be loaded ({error}); {_BUILD}") from error

_OPS = torch.ops.nestedfp
_MODES = {code: mode for mode, code in CODES.items()}


def set_mode(mode: Mode) -> None:
    """Set the precision of every later ``linear`` of this process, in all threads."""
    _OPS.set_mode(CODES[mode])


def set_mixed(is_exact: torch.Tensor) -> None:
    """Have some rows of every later ``linear`` run in FP16 and the others in FP8, until ``set_mode``.

    A row gets what ``linear`` gives it in a step of its precision, up to the order of additions on a GPU, which depends on how many
    rows there are. An operator whose input has another number of rows runs FP16 whole.

    Args:
        is_exact: [rows] bool on a CPU, exact rows and others. GPU operators need the exact rows first.

    Raises:
        RuntimeError: for a mask of rows of one kind, or of another shape, dtype or device.
    """
    _OPS.set_mixed(is_exact)


def exact_rows() -> int:
    """Return how many rows of ``set_mixed`` run in FP16: 0 where it is not in force, -1 where they are not the first rows."""
    rows: int = _OPS.exact_rows()
    return rows


def get_mode() -> Mode:
    """Return the precision in force, FP8 with ``set_mixed``. A new process starts in FP16."""
    return _MODES[_OPS.get_mode()]


def cpu_isa() -> str:
    """Return the instruction set of the CPU kernels in use: "scalar" or "avx2".

    Raises:
        RuntimeError: when the environment variable NESTEDFP_CPU_ISA names one that does not exist or does not run here.
    """
    isa: str = _OPS.cpu_isa()
    return isa


def split(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Split a weight into planes, clamping what lies beyond +-1.75.

    Args:
        weight: [N, K] float16, contiguous.

    Returns:
        ``(upper, lower, counts)``: uint8 [N, K] twice, and int64 [2] = finite weights beyond 1.75, infinities and NaNs.
        Clamped elements are not recoverable from the planes: see nested_weight.nest.
    """
    upper, lower, counts = _OPS.split(weight)
    return upper, lower, counts


def join(upper: torch.Tensor, lower: torch.Tensor) -> torch.Tensor:
    """Rebuild the FP16 weight [N, K] of planes, uint8 [N, K], contiguous, on a CPU (nestedfp/format.py has the reference)."""
    weight: torch.Tensor = _OPS.join(upper, lower)
    return weight


def pack(upper: torch.Tensor, lower: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rearrange row-major planes into the layout that ``linear`` reads (csrc/cpu/kernels/kernels.h).

    Args:
        upper, lower: [N, K] uint8, contiguous.

    Returns:
        On a CPU uint8 [ceil(N / 16), ceil(K / 2) * 32] twice: the same bytes plus zeros that pad N to 16 and K to 2. The
        packed lower plane is recoded, one byte for one byte. On a GPU uint8 as csrc/cuda/kernels/layout.h has it.
    """
    packed_upper, packed_lower = _OPS.pack(upper, lower)
    return packed_upper, packed_lower


def join_rows(upper: torch.Tensor, lower: torch.Tensor, n: int, k: int, first_row: int, rows: int) -> torch.Tensor:
    """Return rows of the weight [n, k] whose planes ``pack`` made: float16 [rows, k]. On a GPU from a multiple of 64 on."""
    weight: torch.Tensor = _OPS.join_rows(upper, lower, n, k, first_row, rows)
    return weight


def linear(
    x: torch.Tensor,
    upper: torch.Tensor,
    lower: torch.Tensor,
    bias: torch.Tensor | None,
    outlier_rows: torch.Tensor | None,
    outlier_cols: torch.Tensor | None,
    outlier_deltas: torch.Tensor | None,
    n: int,
    k: int,
    quantize_activations: bool,
    is_exact: bool = False,
) -> torch.Tensor:
    """Compute ``x @ W.T + bias`` in the mode in force when the operator runs.

    FP16 mode multiplies the exact stored weights. FP8 mode reads only ``upper``: the weights rounded to E4M3. Sums are
    FP32 and rounded once, to the dtype of ``x``. A row's result does not depend on the rows beside it, nor on the
    number of threads or the instruction set.

    Args:
        x: [..., k] float16 or, on a CPU, float32.
        upper, lower: planes from ``pack``.
        bias: [n] of either dtype, or None.
        outlier_rows, outlier_cols, outlier_deltas: of a ``NestedWeight``, or None each; they always multiply the
            ``x`` given, never a quantised one.
        n, k: output and input features.
        quantize_activations: in FP8 mode, round each row of ``x`` to E4M3 first, with its own scale.
        is_exact: compute as in FP16 mode whatever the mode.

    Returns:
        [..., n], the dtype of ``x``.

    Raises:
        RuntimeError: for arguments of the wrong shape, dtype or device.
    """
    out: torch.Tensor = _OPS.linear(
        x, upper, lower, bias, outlier_rows, outlier_cols, outlier_deltas, n, k, quantize_activations, is_exact
    )
    return out


def linear_carried(
    carrier: torch.Tensor,
    scales: torch.Tensor,
    upper: torch.Tensor,
    lower: torch.Tensor,
    bias: torch.Tensor | None,
    n: int,
    k: int,
) -> torch.Tensor:
    """Compute what ``linear`` with ``quantize_activations`` does, of activations that one of the next three operators made.

    A *carrier* is a tensor of the shape and dtype of the activations, and its bytes hold what the mode in force reads: in FP16
    mode on a GPU the activations, in FP8 mode their E4M3 codes, [rows, k] in the K order of the packed upper plane, at the
    front of that memory, with ``scales``; in a mixed step the exact rows' activations, then the codes of the others. So shapes
    do not depend on the mode, and one compiled graph serves both. Nothing else may read a carrier, and the mode may not change
    between the operator that makes one and the linear layer that reads it: it changes between engine steps. On a CPU it always
    holds the activations.

    Args:
        carrier: [..., k] float16, contiguous; k is a multiple of CARRIER_COLUMNS.
        scales: [...] float32.
        upper, lower, bias, n, k: as in ``linear``. There are no outliers, which multiply activations that were not quantised.

    Returns:
        [..., n], the dtype of the carrier.

    Raises:
        RuntimeError: for arguments of the wrong shape, dtype or device.
    """
    out: torch.Tensor = _OPS.linear_carried(carrier, scales, upper, lower, bias, n, k)
    return out


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalise each row: ``x / sqrt(mean(x^2) + epsilon) * weight``, as vLLM's rms_norm defines it.

    Args:
        x: [..., k] float16; k is a multiple of CARRIER_COLUMNS, on a GPU at most 16,384.
        weight: [k] float16.
        epsilon: what is added to the mean.

    Returns:
        ``(carrier, scales)`` for ``linear_carried``.

    Raises:
        RuntimeError: for arguments of the wrong shape, dtype or device.
    """
    carrier, scales = _OPS.rms_norm(x, weight, epsilon)
    return carrier, scales


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Normalise the rows of ``x + residual``; as ``rms_norm``, with a third result.

    The sum is a new tensor, not ``residual`` itself as in vLLM's kernel: a graph of functional operators needs no analysis of
    who still reads what, and as many bytes are written.

    Returns:
        ``(carrier, scales, sum)``, sum [..., k] the dtype of ``x``.
    """
    carrier, scales, total = _OPS.add_rms_norm(x, residual, weight, epsilon)
    return carrier, scales, total


def silu_and_mul(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute ``silu(gate) * up`` of each row, as vLLM's silu_and_mul does.

    Args:
        x: [..., 2 * k] float16, gate then up; k is a multiple of CARRIER_COLUMNS, on a GPU at most 81,920.

    Returns:
        ``(carrier, scales)`` of rows of k for ``linear_carried``.

    Raises:
        RuntimeError: for arguments of the wrong shape, dtype or device.
    """
    carrier, scales = _OPS.silu_and_mul(x)
    return carrier, scales


def _fake_linear(x: torch.Tensor, _upper: torch.Tensor, _lower: torch.Tensor, *others: Any) -> torch.Tensor:
    n = others[4]  # behind the bias and the three lists of outliers
    return x.new_empty(*x.shape[:-1], n)


def _fake_linear_carried(carrier: torch.Tensor, *others: Any) -> torch.Tensor:
    *_, n, _k = others
    return carrier.new_empty(*carrier.shape[:-1], n)


def _fake_rms_norm(x: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return x.new_empty(x.shape), activations.empty_scales(x)


def _fake_add_rms_norm(x: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return x.new_empty(x.shape), activations.empty_scales(x), x.new_empty(x.shape)


def _fake_silu_and_mul(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.new_empty(*x.shape[:-1], x.shape[-1] // 2), activations.empty_scales(x)


# The others run while a checkpoint loads, which nobody traces.
for _name, _fake in (
    ("linear", _fake_linear),
    ("linear_carried", _fake_linear_carried),
    ("rms_norm", _fake_rms_norm),
    ("add_rms_norm", _fake_add_rms_norm),
    ("silu_and_mul", _fake_silu_and_mul),
):
    torch.library.register_fake(f"nestedfp::{_name}", _fake)

_cpu = torch.library.Library("nestedfp", "IMPL")  # type: ignore[no-untyped-call]
for _name, _operator in (
    ("rms_norm", activations.rms_norm),
    ("add_rms_norm", activations.add_rms_norm),
    ("silu_and_mul", activations.silu_and_mul),
):
    _cpu.impl(_name, _operator, "CPU")  # type: ignore[no-untyped-call]
