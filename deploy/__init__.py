"""The Ray Serve application: replicas, ingress, and the start-up command."""
