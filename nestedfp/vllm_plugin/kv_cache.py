"""Which KV caches go with nested weights, and what of vLLM's attention reads an FP8 one beside FP16 weights."""

from typing import TYPE_CHECKING

from nestedfp.vllm_plugin.options import FP8_KV_DTYPES, PLAIN_KV_DTYPES, rounds_kv

if TYPE_CHECKING:
    from vllm.config import VllmConfig

DTYPES = (*PLAIN_KV_DTYPES, *FP8_KV_DTYPES)


def complete(config: "VllmConfig", *, is_cpu: bool) -> None:
    """Refuse a cache that cannot be read; on a GPU have Triton read an FP8 one where the user chose no attention.

    FlashAttention reads FP8 for models in BF16 alone, and says so with the first prompt.

    Raises:
        ValueError: with the setting, its value and what to set.
    """
    import torch
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    chosen = config.attention_config
    is_reference = chosen.backend is AttentionBackendEnum.CPU_MLA and not chosen.backend_per_kind
    if is_cpu and config.model_config.use_mla and not is_reference:
        raise ValueError(
            f"attention_config: backend {chosen.backend}, backend_per_kind {chosen.backend_per_kind}: nestedfp takes 'CPU_MLA' for "
            "latent attention on a CPU, since vLLM's kernels for AMX are wrong in FP16; leave both unset"
        )
    dtype = config.cache_config.cache_dtype
    if dtype not in DTYPES:
        raise ValueError(
            f"nestedfp serves KV caches of {', '.join(DTYPES)}, not kv_cache_dtype={dtype!r}; leave kv_cache_dtype at 'auto'"
        )
    if not rounds_kv(config):
        return
    capability = torch.backends.cpu.get_cpu_capability()
    if is_cpu and "AVX512" not in capability:
        raise ValueError(
            f"kv_cache_dtype={dtype!r}: vLLM's attention on a CPU needs AVX-512 for it, and this one has {capability}; leave "
            "kv_cache_dtype at 'auto'"
        )
    if is_cpu:
        return
    if config.model_config.use_mla:
        raise ValueError(
            f"kv_cache_dtype={dtype!r}: nestedfp serves no FP8 cache of latent attention on a GPU; leave kv_cache_dtype at 'auto'"
        )
    if config.attention_config.backend is AttentionBackendEnum.FLASH_ATTN:
        raise ValueError(
            f"kv_cache_dtype={dtype!r}: FlashAttention reads an FP8 cache for models in BF16 alone, and nestedfp's are FP16; "
            "remove attention_config's backend, or set it to 'TRITON_ATTN'"
        )
    if config.attention_config.backend is None:
        config.attention_config.backend = AttentionBackendEnum.TRITON_ATTN
