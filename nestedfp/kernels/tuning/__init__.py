"""Choice of GEMM configs by times measured on the card when an engine starts."""
