"""What the controller knows about the replicas."""
