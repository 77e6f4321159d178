"""One replica: the actor that hosts the engine, what it checks before it serves, its health, and what its answers disclose."""
