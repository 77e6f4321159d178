"""The tables of the documents, made from docs/results and benchmarks/results."""
