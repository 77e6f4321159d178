"""Classes before vLLM's scheduler: the requests' classes, and what the scheduler tells and is told."""
