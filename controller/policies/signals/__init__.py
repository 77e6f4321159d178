"""What policies measure: load, sums over replicas, health, misses, history."""
