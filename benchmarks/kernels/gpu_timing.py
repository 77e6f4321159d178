"""Timing on a GPU: CUDA graphs of many launches, one system after the other, medians."""

import math
import statistics
from collections.abc import Callable, Sequence
from itertools import pairwise

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


def window_us(launch: Callable[[int], object], rotation: int, length_us: float) -> float:
    """Return the median microseconds of a launch in a window of about ``length_us``, whose first third is a warm-up.

    Args:
        launch: is given the number of the launch, and the same operands every ``rotation`` launches.
    """
    expected_us = _replays_us(capture(launch, rotation), 2)[-1] / rotation
    count = max(1, math.ceil(500 / expected_us / rotation)) * rotation
    times_us = _replays_us(capture(launch, count), max(6, math.ceil(length_us / (count * expected_us))))
    return statistics.median(times_us[len(times_us) // 3 :]) / count


def rotated_us(launches: Sequence[Callable[[], object]], length_us: float) -> float:
    """The same of launches that take turns."""
    return window_us(lambda at: launches[at % len(launches)](), len(launches), length_us)


def _replays_us(graph: torch.cuda.CUDAGraph, replays: int) -> list[float]:
    events = [torch.cuda.Event(enable_timing=True) for _ in range(replays + 1)]
    events[0].record()
    for event in events[1:]:
        graph.replay()
        event.record()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) * 1e3 for begin, end in pairwise(events)]
