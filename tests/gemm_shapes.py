"""Linear layers of the models that the kernels are measured on, as (N, K) of one rank, and the token counts."""

SHAPES: dict[str, tuple[int, int]] = {
    "llama-3.1-8b qkv": (6144, 4096),
    "llama-3.1-8b o": (4096, 4096),
    "llama-3.1-8b gate_up": (28672, 4096),
    "llama-3.1-8b down": (4096, 14336),
    "mistral-nemo qkv": (6144, 5120),
    "mistral-nemo o": (5120, 4096),
    "mistral-nemo gate_up": (28672, 5120),
    "mistral-nemo down": (5120, 14336),
    "phi-4 qkv": (7680, 5120),
    "phi-4 o": (5120, 5120),
    "phi-4 gate_up": (35840, 5120),
    "phi-4 down": (5120, 17920),
    "mistral-small gate_up": (65536, 5120),
    "mistral-small down": (5120, 32768),
    "llama-70b/2 qkv": (5120, 8192),
    "llama-70b/2 o": (8192, 4096),
    "llama-70b/2 gate_up": (28672, 8192),
    "llama-70b/2 down": (8192, 14336),
}

TOKENS = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096)
