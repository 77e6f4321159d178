"""Replicas, network and routing around simulated engines."""
