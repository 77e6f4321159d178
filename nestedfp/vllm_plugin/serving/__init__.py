"""What a plain ``vllm serve`` has of the service: pins, disclosure, metrics, the directive route, the SLO from the start."""
