"""The window of a replica's latencies; the simulator's replicas have the same."""

from controller.sliding_window import SlidingWindow

__all__ = ["SlidingWindow"]
