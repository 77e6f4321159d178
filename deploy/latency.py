"""The window of a replica's latencies; the simulator's replicas have the same."""

from controller.latency import SlidingWindow

__all__ = ["SlidingWindow"]
