"""Files that are built while the tests run: traces, SQLite exports, NumPy arrays. All constructed, none measured."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np

FIXTURES = Path(__file__).parent / "fixtures"

#: One layer of a made-up model: kernel name, duration in us.
LAYER = (
    ("flash_fwd_splitkv_kernel", 12.0),
    ("nvjet_tst_64x8_gemm", 9.0),
    ("fused_moe_kernel", 38.0),
    ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 11.0),
    ("rms_norm_kernel", 2.3),
)
HEAD = (("embedding_kernel", 2.0),)
TAIL = (("lm_head_gemm", 90.0), ("argmax_sampling_kernel", 6.0))
LAYERS = 4
GAP_US, BETWEEN_STEPS_US = 0.25, 250.0
STEP_KERNELS = len(HEAD) + LAYERS * len(LAYER) + len(TAIL)
#: start of a step to start of the next, us
STEP_US = sum(d for _, d in HEAD + LAYER * LAYERS + TAIL) + STEP_KERNELS * GAP_US + BETWEEN_STEPS_US


def kernels(steps: int, prefill_before: int | None = None) -> list[tuple[str, float, float]]:
    """(name, start us, duration us) of `steps` equal steps; before step `prefill_before` a prefill runs."""
    out, now = [], 1_000.0
    for step in range(steps):
        if step == prefill_before:
            for index in range(37):
                out.append((f"prefill_kernel_{index % 5}", now, 300.0))
                now += 301.0
        now += BETWEEN_STEPS_US
        for name, duration in HEAD + LAYER * LAYERS + TAIL:
            out.append((name, now, duration))
            now += duration + GAP_US
    return out


def torch_trace(path: Path, steps: int = 8, **options: Any) -> Path:
    """A torch profiler trace with a graph launch before every step and CPU events in between."""
    events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}}]
    for index, (name, start, duration) in enumerate(kernels(steps, **options)):
        if name == HEAD[0][0]:
            host = {"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "pid": 9, "tid": 9}
            events.append(host | {"ts": start - 20.0, "dur": 8.0})
            events.append(
                {"ph": "X", "cat": "cpu_op", "name": "aten::copy_", "pid": 9, "tid": 9, "ts": start, "dur": 3.0}
            )
        args = {"device": 0, "context": 1, "stream": 7, "correlation": index}
        kernel = {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "args": args}
        events.append(kernel | {"ts": start, "dur": duration})
    document = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "GPU"}],
        "traceEvents": events,
        "traceName": "t",
    }
    path.write_text(json.dumps(document))
    return path


def nsys_sqlite(path: Path, steps: int = 8, **options: Any) -> Path:
    """An Nsight Systems export with kernels, names and launches."""
    names: dict[str, int] = {"cudaGraphLaunch_v10000": 1}
    database = sqlite3.connect(path)
    database.executescript(
        "CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL);"
        "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER, "
        "streamId INTEGER, correlationId INTEGER, demangledName INTEGER, shortName INTEGER);"
        "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, nameId INTEGER, correlationId INTEGER);"
        "CREATE TABLE TARGET_INFO_GPU (name TEXT);"
    )
    for index, (name, start, duration) in enumerate(kernels(steps, **options)):
        key = names.setdefault(name, len(names) + 1)
        row = (round(start * 1e3), round((start + duration) * 1e3), 0, 7, index, key, key)
        database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?,?,?,?,?,?,?)", row)
        if name == HEAD[0][0]:
            launch = (round((start - 20) * 1e3), round((start - 12) * 1e3), 1, index)
            database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?,?,?,?)", launch)
    database.executemany("INSERT INTO StringIds VALUES (?,?)", [(key, name) for name, key in names.items()])
    database.commit()
    database.close()
    return path


def expert_trace(path: Path, tokens: int = 60, layers: int = 3, top_k: int = 4, experts: int = 32) -> Path:
    """An ordered trace of expert ids, tokens x layers x top-k, as NPZ."""
    rng = np.random.default_rng(0)
    ids = np.argsort(rng.random((tokens, layers, experts)), axis=2)[:, :, :top_k]
    np.savez(path, expert_ids=ids.astype(np.int16), note=np.array("x"))
    return path


def vllm_detailed(requests: int = 24, level: int = 4, step_s: float = 0.012, prefill_s: float = 0.2) -> dict[str, Any]:
    """A --save-detailed result of a closed loop: `level` streams, every prefill stalls the others' step by `prefill_s`.

    Event-driven: all streams step together; when a stream ends the next request prefills and everyone waits.
    """
    chunks = 120
    starts, ttfts, itls = [], [], []
    now, running, waiting = 0.0, [], list(range(requests))
    while running or waiting:
        while waiting and len(running) < level:
            waiting.pop()
            starts.append(now)
            ttfts.append(prefill_s)
            itls.append([])
            for other in running:
                other["late"] += prefill_s
            now += prefill_s
            running.append({"at": len(itls) - 1, "left": chunks, "late": 0.0})
        now += step_s
        for stream in running:
            itls[stream["at"]].append(step_s + stream["late"])
            stream["late"], stream["left"] = 0.0, stream["left"] - 1
        running = [s for s in running if s["left"]]
    kept = 3.65
    output = round(chunks * kept) + 1
    flat = [x for request in itls for x in request]
    e2e = [t + sum(i) for t, i in zip(ttfts, itls, strict=True)]
    tpot = [sum(i) / (output - 1) for i in itls]
    return {
        "date": "20260915-101112", "backend": "vllm", "model_id": "m", "tokenizer_id": "m", "num_prompts": requests,
        "request_rate": "inf", "burstiness": 1.0, "max_concurrency": level, "duration": now, "completed": requests,
        "failed": 0, "total_input_tokens": 2048 * requests, "total_output_tokens": output * requests,
        "request_throughput": requests / now, "output_throughput": output * requests / now,
        "input_lens": [2048] * requests, "output_lens": [output] * requests, "start_times": starts, "ttfts": ttfts,
        "itls": itls, "generated_texts": ['a "quoted\\" } ] text'] * requests, "errors": [""] * requests,
        "spec_decode_acceptance_length": kept, "spec_decode_num_drafts": chunks * requests,
        "spec_decode_draft_tokens": 5 * chunks * requests,
        "spec_decode_accepted_tokens": round(2.65 * chunks * requests),
        "spec_decode_acceptance_rate": 53.0, "spec_decode_per_position_acceptance_rates": [0.8, 0.65, 0.5, 0.4, 0.3],
        "mean_ttft_ms": 1e3 * float(np.mean(ttfts)), "median_ttft_ms": 1e3 * float(np.median(ttfts)),
        "mean_tpot_ms": 1e3 * float(np.mean(tpot)), "median_tpot_ms": 1e3 * float(np.median(tpot)),
        "mean_itl_ms": 1e3 * float(np.mean(flat)), "median_itl_ms": 1e3 * float(np.median(flat)),
        "mean_e2el_ms": 1e3 * float(np.mean(e2e)),
    }  # fmt: skip
