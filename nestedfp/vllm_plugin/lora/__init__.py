"""LoRA adapters: which ones are taken, and their slots on a CPU."""
