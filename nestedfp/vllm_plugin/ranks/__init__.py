"""In the processes that compute: workers, CUDA graphs, checks and timing."""
