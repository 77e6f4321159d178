"""What is asked of a service: traces and how they are cut and scaled, objectives, and the records of what came of it."""
