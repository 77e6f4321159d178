"""What precedes a linear layer: norms and activation with the quantiser in them, and apart: compiled, with a quantiser behind.

    python -m benchmarks.kernels.gpu_rows --out rows.csv

For each operator, its width (of the 8B and the 24B shape) and token count, in FP16 and in FP8: "fused", this project's operator,
and "apart", torch.compile's kernel of the operator as vLLM defines it, in FP8 followed by this project's quantiser. Launches
follow one another in a CUDA graph, early where the kernels allow it, and read what L2 holds, as behind a GEMM. Rows
``system,operator,precision,K,M,us``; a time is the median of interleaved replays. The floor: the bytes read and written at
3.0 TB/s.
"""

import argparse
import csv
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.kernels import gpu_kernels as kernels
from benchmarks.kernels.gpu_timing import capture, interleaved_us
from benchmarks.results_csv import heading
from nestedfp.kernels import ops
from nestedfp.modes import Mode

RESULT = Path("benchmarks/results/h100-rows.csv")
COLUMNS = ("system", "operator", "precision", "K", "M", "us")
WIDTHS = {"add_rms_norm": (4096, 5120), "silu_and_mul": (14336, 32768)}
TOKENS = (1, 4, 8, 16, 32, 64, 96, 128, 192, 256, 448, 864, 2048, 8192)
LAUNCHES, ROUNDS, EPSILON = 40, 15, 1e-5
COPY_BYTES_PER_US = 3.0e6


def norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Add and norm as vLLM defines it: FP32, rounded to FP16 before and after the weight."""
    total = x.float() + residual.float()
    scaled = total * torch.rsqrt(total.square().mean(-1, keepdim=True) + EPSILON)
    return scaled.half() * weight, total.half()


def silu(x: torch.Tensor) -> torch.Tensor:
    """SiLU and multiply as vLLM defines it."""
    k = x.shape[-1] // 2
    return torch.nn.functional.silu(x[..., :k]) * x[..., k:]


def launchers(operator: str, m: int, k: int) -> tuple[Callable[[], Any], Callable[[], Any], Callable[[], Any]]:
    """How to launch an operator: this project's, the compiled one, and that with the quantiser behind it."""
    codes = torch.empty(m, k, device="cuda", dtype=torch.uint8)
    scale = torch.empty(m, device="cuda")
    arguments: tuple[Any, ...]
    if operator == "silu_and_mul":
        compiled, fused = torch.compile(silu), ops.silu_and_mul
        arguments, more = (torch.randn(m, 2 * k, device="cuda").half(),), ()
    else:
        compiled, fused = torch.compile(norm), ops.add_rms_norm
        arguments = (*(torch.randn(m, k, device="cuda").half() for _ in range(2)), torch.randn(k, device="cuda").half())
        more = (EPSILON,)

    def apart() -> Any:
        return compiled(*arguments)

    def apart_fp8() -> None:
        found = compiled(*arguments)
        kernels.quantize(found if torch.is_tensor(found) else found[0], codes, scale)

    for argument in arguments:
        if argument.dim() > 1 and m > 1:
            torch._dynamo.mark_dynamic(argument, 0)  # as vLLM compiles: for any number of tokens, of known width
    apart_fp8()
    return lambda: fused(*arguments, *more), apart, apart_fp8


def floor_us(operator: str, precision: str, m: int, k: int) -> float:
    """Microseconds that the operator's bytes take."""
    read_and_summed = 2 * 2 * k if operator == "silu_and_mul" else 3 * 2 * k
    return m * (read_and_summed + (k if precision == "fp8" else 2 * k)) / COPY_BYTES_PER_US


def measure(operator: str, m: int, k: int) -> list[list[object]]:
    """Return the rows of one operator, width and token count."""
    fused, apart, apart_fp8 = launchers(operator, m, k)
    names, graphs = [], []
    for mode in Mode:
        ops.set_mode(mode)
        for system, launch in (("fused", fused), ("apart", apart_fp8 if mode is Mode.FP8 else apart)):
            names.append((system, operator, mode.value))
            graphs.append(capture(lambda _, launch=launch: launch(), LAUNCHES))  # type: ignore[misc]
    times = interleaved_us(graphs, [LAUNCHES] * len(graphs), ROUNDS)
    rows: list[list[object]] = [[*name, k, m, round(us, 2)] for name, us in zip(names, times, strict=True)]
    floors = [["floor", operator, p, k, m, round(floor_us(operator, p, m, k), 2)] for p in ("fp16", "fp8")]
    return rows + floors


def main(argv: list[str] | None = None) -> int:
    """Measure; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels.gpu_rows", description=__doc__)
    parser.add_argument("--tokens", default=",".join(map(str, TOKENS)))
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args(argv)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with args.out.open("w", newline="") as file:
        file.writelines(f"# {line}\n" for line in heading(argv))
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for operator, widths in WIDTHS.items():
            for k in widths:
                torch._dynamo.reset()
                for m in map(int, args.tokens.split(",")):
                    found = measure(operator, m, k)
                    writer.writerows(found)
                    file.flush()
                    print(operator, k, m, *(f"{row[0]} {row[2]} {row[5]}" for row in found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
