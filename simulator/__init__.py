"""A discrete-event simulator of the cluster that runs the live control loop, followers and step rule. See docs/simulator.md.

What is modelled here: engines, network, routing, load. What is never defined here: a policy, a guard, a publisher, a
follower, admission control or a step rule; those are the live ones.
"""
