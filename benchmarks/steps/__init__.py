"""What every step of an engine takes, on the host and on the GPU: a worker that keeps a log, and a table of it."""
