"""Token counts of CUDA graphs above vLLM's own largest size. Pure."""


def larger_sizes(largest: int, up_to: int) -> list[int]:
    """Return the token counts to capture above ``largest``: apart by 32, from 768 by 64, from 1024 by 128, and ``up_to``.

    A step is padded to the next size, so that it computes up to 6, 8 or 12 % more than it must, half of that in the mean.
    """
    spaced = {n for n in range(32, up_to + 1, 32) if n % (32 if n <= 768 else 64 if n <= 1024 else 128) == 0}
    return sorted(n for n in spaced | {up_to} if n > largest)
