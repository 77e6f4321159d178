"""Every field of a request has the effect that it asks for, or is refused, or is named as without effect."""
