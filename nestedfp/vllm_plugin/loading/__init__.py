"""What an engine's load of a checkpoint has set, and what a checkpoint would leave unset."""
