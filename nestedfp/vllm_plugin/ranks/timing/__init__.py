"""How long a rank's steps take: each size at the start, every step from then on."""
