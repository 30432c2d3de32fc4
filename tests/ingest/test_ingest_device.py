"""Devices and links from nvidia-smi, and lane files from `twin init`, all accepted by `twin check`."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from twin.cli.main import cli
from twin.errors import IngestError, TwinError
from twin.ingest.nvidia_smi import pcie_bytes_per_s, read_report, read_topology
from twin.ingest.source import source
from twin.lane.catalogue import catalogue_roots, load_lane, names

# Constructed after the layout of `nvidia-smi -q -x` (nvsmi_device_v12) and of `nvidia-smi topo -m`.
REPORT = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
\t<timestamp>Mon Sep 15 10:00:00 2026</timestamp>
\t<driver_version>590.44.01</driver_version>
\t<cuda_version>13.1</cuda_version>
\t<attached_gpus>1</attached_gpus>
\t<gpu id="00000000:01:00.0">
\t\t<product_name>NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition</product_name>
\t\t<product_architecture>Blackwell</product_architecture>
\t\t<pci>
\t\t\t<pci_gpu_link_info>
\t\t\t\t<pcie_gen><max_link_gen>5</max_link_gen><current_link_gen>1</current_link_gen></pcie_gen>
\t\t\t\t<link_widths><max_link_width>16x</max_link_width><current_link_width>16x</current_link_width></link_widths>
\t\t\t</pci_gpu_link_info>
\t\t</pci>
\t\t<fb_memory_usage><total>97887 MiB</total><reserved>605 MiB</reserved><used>1 MiB</used></fb_memory_usage>
\t\t<bar1_memory_usage><total>131072 MiB</total></bar1_memory_usage>
\t\t<gpu_power_readings><power_state>P8</power_state><current_power_limit>325.00
W</current_power_limit></gpu_power_readings> \t</gpu>
</nvidia_smi_log>
"""
TOPOLOGY = """\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tPIX\tNODE\tSYS\tNODE\t0-31\t0\t\tN/A
GPU1\tPIX\t X \tNODE\tSYS\tNODE\t0-31\t0\t\tN/A
GPU2\tNODE\tNODE\t X \tSYS\tPIX\t0-31\t0\t\tN/A
GPU3\tSYS\tSYS\tSYS\t X \tSYS\t32-63\t1\t\tN/A
NIC0\tNODE\tNODE\tPIX\tSYS\t X \t\t\t\t

Legend:

  X    = Self
"""


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def run(*arguments: str | Path, **options: Any) -> Any:
    return CliRunner().invoke(cli, [str(a) for a in arguments], **options)


def test_report(tmp_path: Path) -> None:
    (gpu,) = read_report(source(write(tmp_path / "x", REPORT)))
    assert gpu.name.startswith("NVIDIA RTX PRO 6000") and gpu.driver == "590.44.01"
    assert (gpu.memory_bytes, gpu.power_w, gpu.pcie_generation, gpu.pcie_width) == (97887 * 2**20, 325.0, 5, 16)


def test_old_power_key_and_missing_values(tmp_path: Path) -> None:
    old = REPORT.replace("gpu_power_readings", "power_readings").replace("current_power_limit", "power_limit")
    (gpu,) = read_report(source(write(tmp_path / "x", old.replace("97887 MiB", "N/A"))))
    assert gpu.power_w == 325.0 and gpu.memory_bytes is None


def test_topology(tmp_path: Path) -> None:
    pairs = read_topology(source(write(tmp_path / "x", TOPOLOGY)))
    assert {(c.first, c.second): c.word for c in pairs} == {
        ("GPU0", "GPU1"): "PIX", ("GPU0", "GPU2"): "NODE", ("GPU0", "GPU3"): "SYS",
        ("GPU1", "GPU2"): "NODE", ("GPU1", "GPU3"): "SYS", ("GPU2", "GPU3"): "SYS",
    }  # fmt: skip
    (nvlink,) = read_topology(source(write(tmp_path / "y", "\tGPU0\tGPU1\nGPU0\t X \tNV18\nGPU1\tNV18\t X \n")))
    assert (nvlink.kind, nvlink.lanes) == ("nvlink", 18)


def test_pcie_rates() -> None:
    """PCIe 5 x16 carries 63.0 GB/s and PCIe 4 x16 31.5 GB/s one way after the line code."""
    assert pcie_bytes_per_s(5, 16) == pytest.approx(63.0e9, rel=1e-3)
    assert pcie_bytes_per_s(4, 16) == pytest.approx(31.5e9, rel=1e-3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<html></html>", "nvidia-smi -q -x"),
        (REPORT.replace("</gpu>", "</gp>"), "broken XML"),
        (REPORT[:900], "broken XML"),
        (REPORT.replace("<gpu id", "<card id").replace("</gpu>", "</card>"), "no GPU"),
        (REPORT.replace("97887 MiB", "lots"), "not a number with a unit"),
        ("<nvidia_smi_log>" + "<a>" * 200, "nested deeper|broken XML"),
        (
            '<?xml version="1.0"?><!DOCTYPE nvidia_smi_log [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;">]>'
            "<nvidia_smi_log>&b;</nvidia_smi_log>",
            "XML entities",
        ),
    ],
)
def test_reports_that_are_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(IngestError, match=message):
        read_report(source(write(tmp_path / "x", text)))


def test_device_like_another_and_its_link(tmp_path: Path) -> None:
    report, topology = write(tmp_path / "gpus.xml", REPORT), write(tmp_path / "topo.txt", TOPOLOGY)
    root = tmp_path / "mine"
    for folder in ("devices", "links"):
        (root / "hardware" / folder).mkdir(parents=True)
    device, link = root / "hardware/devices/my-gpu.toml", root / "hardware/links/my-link.toml"
    result = run(
        "import-device", report, "--like", "rtx-pro-6000-max-q", "-o", device,
        "--topology", topology, "--link-output", link, "--link-latency", "15 us",
    )  # fmt: skip
    assert result.exit_code == 0, result.exception
    made = tomllib.loads(device.read_text())
    assert made["memory"]["value"] == "97887 MiB" and made["memory"]["kind"] == "measured"
    assert made["read_bandwidth"]["source"].startswith("taken from catalogue entry rtx-pro-6000-max-q")
    way = tomllib.loads(link.read_text())
    assert "63.0" in way["bandwidth"]["value"] and way["staged"] is True and way["peer_to_peer"] is False
    assert run("check", "--catalogue", root).exit_code == 0
    assert "GPU0 - GPU1: PIX, one PCIe bridge" in result.stderr


def test_what_the_driver_does_not_know_is_asked_for(tmp_path: Path) -> None:
    report = write(tmp_path / "gpus.xml", REPORT)
    message = str(run("import-device", report, "--name", "x").exception)
    assert all(flag in message for flag in ("--read-bandwidth", "--kernel-floor", "--compute", "--like"))
    measured = ("--read-bandwidth", "1630 GB/s", "--kernel-floor", "2 us", "--compute", "880 TFLOPS")
    result = run("import-device", report, "--name", "x", *measured)
    assert result.exit_code == 0 and 'value = "1630 GB/s"' in result.stdout
    assert "not a bandwidth" in str(
        run("import-device", report, "--name", "x", "--like", "gb300", "--read-bandwidth", "3 ms").exception
    )
    assert "--gpu is 0 to 0" in str(
        run("import-device", report, "--gpu", "3", "--name", "x", "--like", "gb300").exception
    )
    assert (
        json.loads(run("import-device", report, "--name", "x", "--like", "gb300", "--json").stdout)["gpus"][0][
            "power_w"
        ]
        == 325
    )


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from([REPORT, TOPOLOGY]), st.floats(0, 1, exclude_max=True), st.binary(max_size=6), st.booleans())
def test_mutated_reports(tmp_path: Path, text: str, place: float, put: bytes, cut: bool) -> None:
    data, at = text.encode(), int(place * len(text))
    (tmp_path / "x").write_bytes(data[:at] + put + (b"" if cut else data[at + len(put) :]))
    for read in (read_report, read_topology):
        try:
            read(source(tmp_path / "x"))
        except TwinError as refusal:
            assert len(str(refusal)) > 10


# twin init


@pytest.mark.parametrize("lane", names("lanes", catalogue_roots()))
def test_init_like_every_lane_passes_the_check(lane: str, tmp_path: Path) -> None:
    result = run("init", "my-lane", "--like", lane, "--directory", tmp_path)
    assert result.exit_code == 0, result.exception
    ours, theirs = load_lane("my-lane", (tmp_path, *catalogue_roots())), load_lane(lane, catalogue_roots())
    for key in type(theirs.placement).model_fields:
        mine, old = getattr(ours.placement, key), getattr(theirs.placement, key)
        assert getattr(mine, "value", mine) == getattr(old, "value", old), key
    assert ours.policy.schedule == theirs.policy.schedule


def test_init_writes_a_commented_file_that_the_check_accepts(tmp_path: Path) -> None:
    assert run("init", "my-lane", "--like", "tp4", "--k", "5", "--directory", tmp_path).exit_code == 0
    text = (tmp_path / "hardware/lanes/my-lane.toml").read_text()
    assert text.startswith("# A lane") and len(re.findall(r"^#", text, re.MULTILINE)) >= 8 and "k = 5" in text
    assert run("check", "--catalogue", tmp_path).exit_code == 0
    assert "exists already" in str(run("init", "my-lane", "--like", "tp4", "--directory", tmp_path).exception)


def test_init_from_flags_alone(tmp_path: Path) -> None:
    parts = {
        "checkpoint": "deepseek-v4.1-flash",
        "engine": "fused-decoder-tp4",
        "primary": "rtx-pro-6000-max-q",
        "tensor-parallel": "4",
        "peer-link": "pcie5-x16-p2p",
        "kv-memory": "10 GiB",
        "k": "5",
        "verification": "block",
        "traffic": "mixed",
        "engram-on": "nvme",
    }
    flags = [text for flag, value in parts.items() for text in (f"--{flag}", value)]
    assert run("init", "mine", *flags, "--directory", tmp_path).exit_code == 0
    assert load_lane("mine", (tmp_path, *catalogue_roots())).ranks == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "pass --checkpoint, --engine, --primary"),
        (("--like", "tp44"), "did you mean"),
        (("--like", "tp4", "--kv-memory", "900 GiB"), "does not fit"),
        (("--like", "tp4", "--kv-memory", "ten"), "not a number with a unit"),
        (("--like", "tp4", "--hot", "100"), "--cold-on"),
        (("--like", "tp4", "--traffic", "proze"), "prose"),
        (("--like", "tp4", "--checkpoint", "x"), "no checkpoint named"),
    ],
)
def test_init_refuses(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    assert message in str(run("init", "mine", *arguments, "--directory", tmp_path).exception)
    assert not list(tmp_path.rglob("*.toml"))


def test_init_name(tmp_path: Path) -> None:
    assert "letters, digits" in str(run("init", "../x", "--like", "tp4", "--directory", tmp_path).exception)
