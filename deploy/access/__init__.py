"""Who may ask and for how much, what a replica takes at once, whose turn comes first, and what is written down of it."""
