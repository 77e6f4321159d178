"""What every step of an engine takes, on the host and on the GPU: a worker that logs it, and the sizes that a fit takes."""
