"""Small problems through every tile and kernel, for a memory and race checker.

compute-sanitizer --tool memcheck python -m tests.gpu_sanitize       (or synccheck)
compute-sanitizer --tool racecheck python -m tests.gpu_sanitize 1    (a build with -DNESTEDFP_RACECHECK: schedule.cuh)

The argument is the largest split of K to run. racecheck takes one thread block's stores into another's
shared memory for races, whatever cluster barriers lie between.
"""

import sys

import torch

from benchmarks.kernels import gpu_kernels as kernels
from nestedfp.kernels import cuda_library, ops

# M, N, K and the multiprocessors it is laid out for: few of them yield Stream-K, tails and several rounds.
PROBLEMS = ((33, 200, 1088, 132), (300, 130, 576, 132), (300, 400, 1088, 4))


def main() -> None:
    largest_split = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    torch.manual_seed(0)
    for m, n, k, num_sms in PROBLEMS:
        weight = torch.empty(n, k, device="cuda", dtype=torch.float16).normal_(0, 0.02)
        packed = kernels.pack(weight)
        ops.join_rows(packed.upper, packed.lower, n, k, 0, n)
        x = torch.randn(m, k, device="cuda").half()
        codes = torch.empty(m, packed.upper.shape[1], device="cuda", dtype=torch.uint8)
        scale = torch.empty(m, device="cuda")
        kernels.quantize(x, codes, scale)
        checked = 0
        for precision in (cuda_library.FP16, cuda_library.FP8):
            for _, config in cuda_library.valid_configs(precision, m, n, k, num_sms):
                if config.split > largest_split:
                    continue
                out = torch.empty(m, n, device="cuda", dtype=torch.float16)
                operands = (codes if precision else x, packed, out, scale if precision else None)
                kernels.gemm(config, *operands, num_sms=num_sms)
                checked += 1
        torch.cuda.synchronize()
        print(f"m={m} n={n} k={k} on {num_sms} multiprocessors: {checked} configs", flush=True)


if __name__ == "__main__":
    main()
