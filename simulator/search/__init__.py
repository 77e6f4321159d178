"""Searches over simulations: parameters of a policy, number of replicas."""
