"""An engine that is told every token of a text, and which of its positions to compute in FP8."""
