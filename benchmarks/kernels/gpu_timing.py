"""Timing on a GPU: CUDA graphs of many launches, interleaved replays, medians."""

import math
from collections.abc import Callable, Sequence

import torch

ROTATED_BYTES = 300e6  # inputs rotate over this much memory, six times an H100's L2


def buffers_beyond_l2(bytes_each: float) -> int:
    """How many copies of an operand make a rotation that no cache holds."""
    return max(1, math.ceil(ROTATED_BYTES / bytes_each))


def capture(launch: Callable[[int], object], count: int) -> torch.cuda.CUDAGraph:
    """Capture ``launch(0) .. launch(count - 1)`` as one graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        launch(0)
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(count):
            launch(i)
    return graph


def interleaved_us(graphs: Sequence[torch.cuda.CUDAGraph], launches: Sequence[int], rounds: int) -> list[float]:
    """Microseconds per launch of each graph: the median over ``rounds``, each of which replays every graph once."""
    for graph in graphs:
        graph.replay()
    torch.cuda.synchronize()
    samples: list[list[float]] = [[] for _ in graphs]
    for _ in range(rounds):
        events = []
        for graph in graphs:
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            graph.replay()
            end.record()
            events.append((begin, end))
        torch.cuda.synchronize()
        for times, (begin, end), count in zip(samples, events, launches, strict=True):
            times.append(begin.elapsed_time(end) * 1e3 / count)
    return [sorted(times)[len(times) // 2] for times in samples]
