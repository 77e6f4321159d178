"""The controller's actor, how others find and ask it, and the control routes in front of it."""
