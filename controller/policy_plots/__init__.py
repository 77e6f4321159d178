"""Shows how each policy behaves: the real control loop over a small model of replicas. ``python -m controller.policy_plots``."""
