"""llama.cpp `llama-bench -o json` / `-o jsonl`.

One object a test: `n_prompt` > 0 with `n_gen` = 0 times a prefill, `n_gen` > 0 with `n_prompt` = 0 times plain
decoding of one stream at depth `n_depth`, both > 0 time a mixture that says neither. The tool never speculates, so k
is 0. Times are nanoseconds (`avg_ns`, `stddev_ns`), rates tokens per second (`avg_ts`). The decoded tokens are random
ids: on a Mixture-of-Experts model the experts touched are not those of text.
"""

from __future__ import annotations

from typing import Any

from twin.errors import IngestError
from twin.ingest.jsonstream import JsonStream, documents
from twin.ingest.model import Cell, Found
from twin.ingest.numbers import positive, whole
from twin.ingest.reader import Head, Reader, key_score, nothing_inside, words
from twin.ingest.source import Source

TITLE = "llama-bench results"
_READ = words("""
    build_commit build_number cpu_info gpu_info backends model_filename model_type model_size model_n_params n_batch
    n_ubatch n_threads cpu_mask cpu_strict poll type_k type_v n_gpu_layers n_cpu_moe split_mode main_gpu
    no_kv_offload flash_attn devices tensor_split tensor_buft_overrides use_mmap use_direct_io embeddings
    no_op_offload no_host n_prompt n_gen n_depth test_time avg_ns stddev_ns avg_ts stddev_ts samples_ns samples_ts
    cuda vulkan kompute metal sycl rpc gpu_blas blas opencl model_quant test fit_target fit_min_ctx load_mode repack
    moe_cache n_gen_warmup lazy_mode
""")


def score(head: Head) -> float:
    return key_score(
        head,
        ("n_prompt", "n_gen", "avg_ts"),
        ("build_commit", "model_type", "avg_ns", "stddev_ts", "samples_ns"),
        enough=2,
    )


def read(source: Source) -> Found:
    """One cell a test."""
    found = Found(FORMAT.name, source.where, source.sha256())
    with JsonStream(source) as stream:
        for index in documents(stream):
            if index >= 10_000:
                raise IngestError(f"{source.where}: more than 10,000 tests in one file; split it.")
            raw = stream.value()
            where = f"{source.where}, test {index + 1}"
            if not isinstance(raw, dict):
                raise IngestError(f"{where}: expected an object, got {str(raw)[:40]!r}.")
            for key, value in raw.items():
                if key not in _READ:
                    found.keep(key, value)
            cell = _cell(raw, index + 1, where, found)
            if cell:
                found.cells.append(cell)
    if not found.cells:
        raise nothing_inside(source, TITLE, "no test of prefill or of decoding alone")
    return found


def _cell(raw: dict[str, Any], number: int, where: str, found: Found) -> Cell | None:
    prompt, generated = whole(raw.get("n_prompt"), where, "n_prompt"), whole(raw.get("n_gen"), where, "n_gen")
    depth = whole(raw.get("n_depth"), where, "n_depth") or 0
    rate, spread = positive(raw.get("avg_ts"), where, "avg_ts"), positive(raw.get("stddev_ts"), where, "stddev_ts")
    if rate is None:
        raise IngestError(f"{where}: avg_ts is missing or zero.")
    cell = Cell(
        f"test {number}",
        k=0,
        concurrency_asked=1.0,
        date=str(raw.get("test_time") or "")[:40],
        checkpoint=str(raw.get("model_type") or "")[:200],
    )
    cell.engine = f"llama.cpp {raw.get('build_commit') or ''} {raw.get('backends') or ''}".strip()[:80]
    cell.noise = spread / rate if spread else None
    if prompt and generated:
        found.notes.append(f"test {number}: pp{prompt}+tg{generated} mixes prefill and decoding; left out")
        return None
    if generated:
        cell.tok_s_per_stream, cell.per_stream_definition = rate, "first_to_last_token"
        cell.step_s, cell.step_definition = 1.0 / rate, "pass_time"
        cell.context_tokens, cell.output_tokens = float(depth), float(generated)
    elif prompt:
        cell.prefill_tok_s, cell.context_tokens = rate, float(depth + prompt)
        if depth:
            cell.notes.append(f"{prompt} tokens prefilled after {depth}")
    else:
        return None
    cell.notes.append("random token ids")
    return cell


FORMAT = Reader("llama-bench", TITLE, score, read)
