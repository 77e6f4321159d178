"""Prints, as JSON, hashes of what the CPU kernels compute: ``NESTEDFP_CPU_ISA=scalar python tests/cpu_digest.py``.

test_cpu_linear.py runs it once per instruction set and demands the same bits from all of them.
"""

import hashlib
import json

import torch

from nestedfp.kernels import ops
from nestedfp.modes import Mode
from nestedfp.nested_weight import NestedWeight, nest

# (n, k, tokens, outliers): decode and prefill, padded and not, on both sides of every block size.
CASES = (
    (1, 1, 1, 0),
    (16, 2, 1, 0),
    (70, 131, 1, 0),
    (70, 131, 2, 4),
    (33, 515, 3, 2),
    (33, 64, 6, 0),
    (49, 1030, 7, 3),
    (130, 77, 13, 0),
    (200, 300, 25, 5),
    (40, 530, 230, 2),
)


def digest(*tensors: torch.Tensor) -> str:
    """Hash the bytes of some tensors."""
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()[:16]


def digests() -> dict[str, str]:
    """Run every case and return its hash by name."""
    found: dict[str, str] = {}
    patterns = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.float16)
    found["split"] = digest(*ops.split(patterns.reshape(256, 256)))
    found["split, odd length"] = digest(*ops.split(patterns[5:-6].reshape(1, -1)))
    generator = torch.Generator().manual_seed(0)
    for n, k, tokens, outliers in CASES:
        weight = (torch.randn(n, k, generator=generator) * 0.2).clamp(-1.75, 1.75).half()
        weight.view(-1)[:: max(1, n * k // 7)] = 3e-6  # FP16 subnormals
        nested = nest(weight)
        assert isinstance(nested, NestedWeight)
        planes = ops.pack(nested.upper, nested.lower)
        lists: tuple[torch.Tensor | None, ...] = (None, None, None)
        if outliers:
            rows = torch.randint(n, (outliers,), generator=generator, dtype=torch.int32).sort().values
            cols = torch.randint(k, (outliers,), generator=generator, dtype=torch.int32)
            lists = (rows, cols, torch.randn(outliers, generator=generator))
        bias = torch.randn(n, generator=generator)
        for dtype in (torch.float16, torch.float32):
            x = torch.randn(tokens, k, generator=generator).to(dtype)
            for mode in Mode:
                for quantize in (False, True):
                    ops.set_mode(mode)
                    out = ops.linear(x, *planes, bias.to(dtype), *lists, n, k, quantize)
                    found[f"linear {n}x{k}, {tokens} x {dtype}, {mode}, {quantize=}"] = digest(out)
    return found


if __name__ == "__main__":
    print(json.dumps({"isa": ops.cpu_isa(), "digests": digests()}))
