"""What a GPU kernel is for, from its name: attention, experts, all_reduce, dense, sampling, copy, other.

Names differ by library and version, so this is a list of words, the first match wins; kernels that match nothing are
`other` and the report lists the largest of them by name.
"""

from __future__ import annotations

import re
from functools import lru_cache

CLASSES = ("attention", "experts", "all_reduce", "dense", "sampling", "copy", "other")
_WORDS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(words, re.IGNORECASE))
    for name, words in (
        (
            "all_reduce",
            r"nccl|cross_device_reduce|all_?reduce|allgather|all_gather|reduce_?scatter|one_?shot|two_?shot|all_?to_?all|deep_?ep|nvshmem|multimem|symm_mem",
        ),
        (
            "experts",
            r"moe|expert|grouped_?gemm|group_gemm|topk_?gating|topk_softmax|permute_(token|row)|router|route_|scatter_routed|silu_and_mul_masked",
        ),
        (
            "attention",
            r"attn|attention|fmha|flash|mla|paged_?kv|flashinfer.*(decode|prefill)|(?<![a-z])rope|rotary|reshape_and_cache|kv_?cache|indexer|merge_state|splitkv",
        ),
        (
            "sampling",
            r"sampl|argmax|multinomial|top_?[kp](?![a-z])|softmax|rejection|verify|bitonic|radix_?sort|sort(?!ed)|cumsum|gumbel|logits",
        ),
        ("dense", r"gemm|gemv|matmul|cutlass|cublas|nvjet|wgmma|xmma|linear|mma_|_mma|splitkreduce|mul_mat|dequant"),
        ("copy", r"memcpy|memset|copy|CatArray|index_select|gather_?kernel|embedding|(?<!pre)fill"),
    )
)


@lru_cache(maxsize=65536)
def kernel_class(name: str) -> str:
    """One of CLASSES."""
    return next((found for found, words in _WORDS if words.search(name[:400])), "other")
