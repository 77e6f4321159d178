"""Plots of simulations."""
