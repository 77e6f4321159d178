"""HAProxy in front of the replicas: what it is told, how it is started and kept, what stands in it."""
