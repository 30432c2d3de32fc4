"""Checkpoints from config.json: parameter totals against published ones, bytes against known ones."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hf_configs import CONFIGS, PUBLISHED
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from twin.cli.main import cli
from twin.errors import IngestError, TwinError
from twin.ingest.hf_checkpoint import Imported, import_checkpoint
from twin.ingest.hf_quant import weights_of
from twin.ingest.hf_shape import shape_of
from twin.ingest.source import source
from twin.lane.catalogue import build, catalogue_roots, load_entry
from twin.lane.check import check_sources
from twin.lane.checkpoint import Checkpoint


def made(config: dict[str, Any], folder: Path, index: dict[str, Any] | None = None, **options: Any) -> Imported:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    if index is not None:
        (folder / "index.json").write_text(json.dumps(index))
    return import_checkpoint(
        source(path), source(folder / "index.json") if index is not None else None, name="m", **options
    )


def checkpoint(text: str) -> Checkpoint:
    return build(Checkpoint, tomllib.loads(text), "made")


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_parameter_totals_are_the_published_ones(name: str) -> None:
    billions, tolerance, active, where = PUBLISHED[name]
    shape = shape_of(CONFIGS[name], name)
    assert shape.total_parameters / 1e9 == pytest.approx(billions, rel=tolerance), where
    if active is not None:
        # Cards count the embedding (a lookup) or not, the head or not, and round to whole billions.
        counts = [(shape.active_parameters + n * shape.head_parameters) / 1e9 for n in (-1, 0, 1)]
        assert min(abs(count - active) for count in counts) <= max(0.05 * active, 0.3), where


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_every_family_gives_a_checkpoint_that_passes_its_check(name: str, tmp_path: Path) -> None:
    entry = checkpoint(made(CONFIGS[name], tmp_path).toml)
    assert [f for f in check_sources("made", entry) if f.level == "error"] == []
    assert entry.total_parameters.value == shape_of(CONFIGS[name], name).total_parameters or (
        entry.total_parameters.value == pytest.approx(shape_of(CONFIGS[name], name).total_parameters, rel=1e-7)
    )


#: Tensors of DeepSeek-V4.1-Flash that a step reads whatever the router says, from the headers of its 48 shards (dtype
#: and shape as listed in AhmmedSamier/dgpp docs/deepseek_v41_flash_plan.md, section 1.10, commit 16217c3f): how many in
#: the 40 layers, rows, columns, bytes a weight, side of the block that shares a one-byte scale (0: none).
V41_DENSE_TENSORS = (
    (40, 32768, 1280, 1, 32),  # wq_b
    (40, 5120, 8192, 1, 32),  # wo_b
    (40, 8192, 4096, 1, 32),  # wo_a
    (40, 1280, 5120, 1, 32),  # wq_a
    (40, 512, 5120, 1, 32),  # wkv
    (120, 2304, 5120, 1, 32),  # shared expert, three matrices
    (2, 25600, 6144, 1, 32),  # Engram wkv
    (80, 24, 20480, 4, 0),  # hyper-connections of attention and of the experts
    (40, 384, 5120, 2, 0),  # routers
    (8, 4096, 1280, 1, 32),  # index queries
    (8, 32, 5120, 2, 0),  # index head weights
    (4, 128, 512, 2, 0),  # index keys
    (7, 512, 5120, 2, 0),  # compressors of four layers, gates of three
)


def test_the_files_together_are_what_the_index_says(tmp_path: Path) -> None:
    """475.24 GiB in 48 shards, 0.90 GiB of them vision; norms, biases and sinks are not counted."""
    index = {"metadata": {"total_size": round(475.24 * 2**30)}, "weight_map": {
        **{f"layers.{i}.ffn.experts.{e}.w1.weight": "a" for i in range(40) for e in range(384)},
        "mtp.0.ffn.experts.0.w1.weight": "a",
    }}  # fmt: skip
    imported = made(CONFIGS["deepseek-v4.1-flash"], tmp_path, index)
    assert not any("computed" in warning for warning in imported.warnings)
    index["metadata"] = {"total_size": round(0.96 * 475.24 * 2**30)}
    (warning,) = (w for w in made(CONFIGS["deepseek-v4.1-flash"], tmp_path, index).warnings if "computed" in w)
    assert "computed 509.3 GB" in warning


def test_dense_weights_are_those_of_the_shard_headers(tmp_path: Path) -> None:
    """7.20 GB: every tensor of the headers but norms, biases and sinks, which are 3 MB together."""
    stored = sum(n * r * c * (size + (block and 1 / block**2)) for n, r, c, size, block in V41_DENSE_TENSORS)
    assert stored == pytest.approx(7.198e9, rel=1e-3)
    ours = checkpoint(made(CONFIGS["deepseek-v4.1-flash"], tmp_path).toml)
    assert ours.dense_bytes.value == pytest.approx(stored, rel=1e-4)
    # The draft's three layers have the same attention and shared expert, hyper-connections and a router of 128; main_proj
    # brings three hidden states together, two Markov tables of rank 256 are in 16 bits.
    layer = sum(r * c * (1 + 1 / 32**2) * (3 if n == 120 else 1) for n, r, c, _, block in V41_DENSE_TENSORS[:6])
    layer += 2 * 24 * 20480 * 4 + 128 * 5120 * 2
    extras = 5120 * 15360 * (1 + 1 / 32**2) + 2 * 129280 * 256 * 2
    assert ours.draft is not None
    assert ours.draft.fixed_bytes.value == pytest.approx(3 * layer + extras + ours.head_bytes.value, rel=1e-4)


def test_the_catalogue_checkpoint_comes_out_of_its_config(tmp_path: Path) -> None:
    """DeepSeek-V4.1-Flash: 18.80064 MB an expert and 890 B of KV a token are published.

    The catalogue's dense weights, 7.6 GB, are an estimate ("about 7.4 B parameters", a scale for 32 weights); the shard
    headers say 7.2 GB (the test below), so the two are 6 % apart.
    """
    ours = checkpoint(made(CONFIGS["deepseek-v4.1-flash"], tmp_path).toml)
    shipped = load_entry("checkpoints", "deepseek-v4.1-flash", catalogue_roots())
    assert isinstance(shipped, Checkpoint) and ours.draft is not None and shipped.draft is not None
    for key in (
        "layers",
        "moe_layers",
        "hidden",
        "experts",
        "top_k",
        "shared_experts",
        "expert_bytes",
        "kv_bytes_per_token",
        "replay_window",
    ):
        assert getattr(ours, key).value == pytest.approx(getattr(shipped, key).value, rel=1e-9), key
    assert ours.head_bytes.value == pytest.approx(shipped.head_bytes.value, rel=1e-3)
    assert ours.dense_bytes.value == pytest.approx(shipped.dense_bytes.value, rel=0.06)
    assert (ours.draft.kind, ours.draft.stages.value, ours.draft.experts.value) == ("block", 3, 128)
    assert ours.draft.trained_block is not None and ours.draft.trained_block.value == 5
    assert ours.engram is not None and shipped.engram is not None
    # The shipped file leaves the scale of 32 values out; the shard headers have it ([rows, 8] beside [rows, 256]).
    assert [t.value for t in ours.engram.table_bytes] == pytest.approx(
        [t.value * 33 / 32 for t in shipped.engram.table_bytes], rel=1e-6
    )
    assert ours.engram.rows_per_token.value == 24


@pytest.mark.parametrize(
    ("name", "dtype", "kv_bytes"),
    [
        # layers x (512 latent + 64 rope) x 2 bytes
        ("deepseek-v3", None, 61 * 576 * 2),
        # with the indexer's 128-value FP8 key and its 4-byte scale in every layer
        ("deepseek-v3.2", None, 61 * (576 * 2 + 132)),
        ("qwen3-235b-a22b", None, 94 * 2 * 4 * 128 * 2),
        ("qwen3-235b-a22b", "fp8", 94 * 2 * 4 * 128),
        # 12 of 48 layers have full attention; the others keep a state of fixed size
        ("qwen3-next-80b-a3b", None, 12 * 2 * 2 * 256 * 2),
        ("gpt-oss-120b", None, 18 * 2 * 8 * 64 * 2),
        # "the global cache of V4.1 is about a quarter" of this: 3,560 B
        ("deepseek-v4-flash", None, 3547.75),
    ],
)
def test_kv_bytes_a_token(name: str, dtype: str | None, kv_bytes: float, tmp_path: Path) -> None:
    assert made(CONFIGS[name], tmp_path, kv_dtype=dtype).values["kv_bytes_per_token"] == pytest.approx(
        kv_bytes, rel=2e-3
    )


def test_a_sparse_index_is_what_a_step_reads(tmp_path: Path) -> None:
    assert made(CONFIGS["glm-5"], tmp_path).values["kv_read_bytes_per_token"] == pytest.approx(78 * 132)


@pytest.mark.parametrize(
    ("name", "expert_mb"),
    [
        ("deepseek-v3", 3 * 7168 * 2048 * (1 + 4 / 128**2) / 1e6),
        ("deepseek-v4.1-flash", 18.80064),
        ("gpt-oss-120b", (3 * 2880 * 2880 + 3 * 2880) * 17 / 32 / 1e6),
        # compressed-tensors int4 in groups of 32 with a 16-bit scale: 24.77 MB
        ("kimi-k2", 3 * 7168 * 2048 * 0.5625 / 1e6),
        ("mixtral-8x7b", 352.32),
    ],
)
def test_expert_bytes_by_quantisation(name: str, expert_mb: float, tmp_path: Path) -> None:
    assert made(CONFIGS[name], tmp_path).values["expert_bytes"] / 1e6 == pytest.approx(expert_mb, rel=1e-4)


def test_ignore_lists_keep_attention_in_sixteen_bits() -> None:
    kimi = weights_of(CONFIGS["kimi-k2"], "x")
    assert (kimi.experts, kimi.attention, kimi.shared, kimi.dense, kimi.head) == (0.5625, 2.0, 2.0, 2.0, 2.0)
    oss = weights_of(CONFIGS["gpt-oss-120b"], "x")
    assert (oss.experts, oss.attention, oss.head) == (17 / 32, 2.0, 2.0)


@pytest.mark.parametrize(
    ("quantisation", "experts", "attention"),
    [
        (
            {
                "quant_method": "modelopt",
                "quant_algo": "NVFP4",
                "exclude_modules": ["lm_head", "model.layers.*.self_attn*"],
            },
            0.5625,
            2.0,
        ),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, 0.5 + 2.5 / 128, 0.5 + 2.5 / 128),
        (
            {"quant_method": "awq", "bits": 4, "group_size": 128, "modules_to_not_convert": ["self_attn"]},
            0.5 + 2.5 / 128,
            2.0,
        ),
        ({"quant_method": "fp8"}, 1.0, 1.0),
        (None, 2.0, 2.0),
    ],
)
def test_quantisation_methods(quantisation: dict[str, Any] | None, experts: float, attention: float) -> None:
    found = weights_of({"torch_dtype": "bfloat16", "quantization_config": quantisation}, "x")
    assert (found.experts, found.attention) == (experts, attention)


def test_an_unknown_method_names_the_flags(tmp_path: Path) -> None:
    config = CONFIGS["mixtral-8x7b"] | {"quantization_config": {"quant_method": "exl3"}}
    with pytest.raises(IngestError, match="--expert-bits and --dense-bits"):
        made(config, tmp_path)
    assert made(config, tmp_path, expert_bits=3.0, dense_bits=6.0).values["expert_bytes"] == 3 * 4096 * 14336 * 3 / 8


def test_a_hostile_ignore_pattern_costs_nothing() -> None:
    quantisation = {"quant_method": "fp8", "ignore": ["re:(([a-z._0-9])+)+!", "re:(", "re:" + ".*a" * 30]}
    assert weights_of({"quantization_config": quantisation}, "x").experts == 1.0


def _index(layers: int, experts: int, total: float, draft: bool) -> dict[str, Any]:
    names = [
        f"model.layers.{layer}.mlp.experts.{e}.down_proj.weight" for layer in range(3, layers) for e in range(experts)
    ]
    names += [f"model.layers.{layer}.self_attn.o_proj.weight" for layer in range(layers + draft)]
    return {"metadata": {"total_size": total}, "weight_map": dict.fromkeys(names, "model-1.safetensors")}


def test_the_index_confirms_size_experts_and_draft(tmp_path: Path) -> None:
    """DeepSeek-V3 on disk is 688.6 GB with its draft layer."""
    found = made(CONFIGS["deepseek-v3"], tmp_path, _index(61, 256, 688.6e9, draft=True))
    assert found.warnings == [] and "[draft]" in found.toml
    without = made(CONFIGS["deepseek-v3"], tmp_path, _index(61, 256, 671.0e9, draft=False))
    assert any("left out" in w for w in without.warnings) and "[draft]" not in without.toml
    odd = made(CONFIGS["deepseek-v3"], tmp_path, _index(61, 256, 400e9, draft=True))
    assert any("the index says 400.0 GB" in w for w in odd.warnings)


def test_an_index_of_another_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IngestError, match="different checkpoints"):
        made(CONFIGS["deepseek-v3"], tmp_path, _index(61, 128, 688e9, draft=True))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": None}, "the key hidden_size is missing"),
        ({"num_hidden_layers": -3}, "at least 1"),
        ({"num_hidden_layers": 10**7}, "no model has that"),
        ({"num_experts_per_tok": 999}, "999 of 256 experts"),
        ({"vocab_size": "many"}, "should be a number"),
        ({"mlp_layer_types": ["dense"]}, "1 entries for 61 layers"),
        ({"quantization_config": [1]}, "should be an object"),
    ],
)
def test_broken_configs_are_named(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(IngestError, match=message):
        made(CONFIGS["deepseek-v3"] | change, tmp_path)


def test_a_dense_model_is_one_expert_that_all_use(tmp_path: Path) -> None:
    found = made(CONFIGS["llama-3.1-8b"], tmp_path)
    entry = checkpoint(found.toml)
    assert (entry.experts.value, entry.top_k.value, entry.moe_layers.value) == (1, 1, 32)
    assert entry.expert_bytes.value == 3 * 4096 * 14336 * 2
    assert any("dense model" in w for w in found.warnings)


def run(*arguments: str | Path) -> Any:
    return CliRunner().invoke(cli, [str(a) for a in arguments])


def test_command(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIGS["glm-4.5"]))
    out = tmp_path / "glm.toml"
    assert "needs a name" in str(run("import-checkpoint", config).exception)
    assert run("import-checkpoint", config, "--name", "glm").stdout.startswith('name = "glm"')
    result = run("import-checkpoint", config, "-o", out)
    assert (
        result.exit_code == 0
        and "352.8 B parameters" in result.stderr
        and tomllib.loads(out.read_text())["name"] == "glm"
    )
    assert "exists already" in str(run("import-checkpoint", config, "-o", out).exception)
    assert json.loads(run("import-checkpoint", config, "--name", "glm", "--json").stdout)["values"]["experts"] == 160
    assert "make them equal" in str(run("import-checkpoint", config, "-o", out, "--name", "x", "--force").exception)


VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-(10**12), 10**12)
    | st.floats()
    | st.text(max_size=5)
    | st.lists(st.integers(-5, 5), max_size=4)
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(sorted(CONFIGS)), st.data())
def test_mutated_configs_never_fail_otherwise(tmp_path: Path, name: str, data: st.DataObject) -> None:
    config = json.loads(json.dumps(CONFIGS[name]))
    inner = config.get("text_config", config)
    for _ in range(data.draw(st.integers(1, 3))):
        inner[data.draw(st.sampled_from(sorted(inner)))] = data.draw(VALUES)
    try:
        checkpoint(made(config, tmp_path).toml)
    except TwinError as refusal:
        assert len(str(refusal)) > 10


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200))
def test_any_bytes_as_config_or_index(tmp_path: Path, data: bytes) -> None:
    config, index = tmp_path / "c", tmp_path / "i"
    config.write_bytes(data)
    for first, second in ((config, None), (index, config)):
        index.write_text(json.dumps(CONFIGS["mixtral-8x7b"]))
        with pytest.raises(TwinError):
            import_checkpoint(source(first), source(second) if second else None, name="m")
