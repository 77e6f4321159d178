"""What the start-up command does: checks, a Ray of its own or one that runs already, what it says, what it cleans up."""
