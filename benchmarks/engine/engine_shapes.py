"""The published model shapes that whole engines are measured on, as Hugging Face configurations for dummy weights."""

from typing import Any

LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5}
# Hidden, intermediate, layers, heads, KV heads, head size, vocabulary.
SHAPES = {
    "llama-8b": (4096, 14336, 32, 32, 8, 128, 128256),  # Llama 3.1 8B
    "mistral-24b": (5120, 32768, 40, 32, 8, 128, 131072),  # the language model of Mistral Small 3.1 24B
    "llama-70b": (8192, 28672, 80, 64, 8, 128, 128256),  # Llama 3.1 70B
}


def config_of(model: str) -> dict[str, Any]:
    """Return the Hugging Face configuration of a published shape."""
    hidden, intermediate, layers, heads, kv_heads, head, vocabulary = SHAPES[model]
    return {
        **LLAMA,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head,
        "vocab_size": vocabulary,
        "max_position_embeddings": 8192,
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        "dtype": "float16",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def rank_layers(model: str, ranks: int) -> dict[str, tuple[int, int]]:
    """Return the linear layers of one of ``ranks`` tensor-parallel ranks as (N, K).

    vLLM splits qkv and gate_up by rows, o and down by columns.

    Raises:
        ValueError: where the ranks do not divide the heads, the KV heads or the intermediate size.
    """
    hidden, intermediate, _, heads, kv_heads, head, _ = SHAPES[model]
    if ranks < 1 or any(size % ranks for size in (heads, kv_heads, intermediate)):
        raise ValueError(
            f"expected ranks that divide the {heads} heads, the {kv_heads} KV heads and the intermediate size {intermediate} "
            f"of {model}, got {ranks}"
        )
    return {
        "qkv": ((heads + 2 * kv_heads) * head // ranks, hidden),
        "o": (hidden, heads * head // ranks),
        "gate_up": (2 * intermediate // ranks, hidden),
        "down": (hidden, intermediate // ranks),
    }
