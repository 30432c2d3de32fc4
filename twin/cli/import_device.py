"""`twin import-device`."""

from __future__ import annotations

from pathlib import Path

import click

from twin.cli import options


@click.command("import-device")
@click.argument("report", type=click.Path(path_type=Path))
@click.option(
    "--gpu", "gpu_index", type=click.IntRange(0, 255), default=0, show_default=True, help="Which GPU of the report."
)
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Device file to write (.toml).")
@click.option("--name", help="Name of the device. Default: that of the output file.")
@click.option("--title", default="", help="Title for people. Default: the product name.")
@click.option("--like", metavar="DEVICE", help="Catalogue device to take what the driver does not know from.")
@click.option("--read-bandwidth", metavar="QUANTITY", help='What a large read achieves, e.g. "1630 GB/s".')
@click.option("--kernel-floor", metavar="QUANTITY", help='Time of the smallest kernel under graph replay, e.g. "2 us".')
@click.option("--compute", metavar="QUANTITY", help='Dense peak that prefill uses, e.g. "880 TFLOPS".')
@click.option("--topology", type=click.Path(path_type=Path), help="Output of `nvidia-smi topo -m`: shows the links.")
@click.option("--link-output", type=click.Path(path_type=Path, dir_okay=False), help="Link file to write from it.")
@click.option("--like-link", metavar="LINK", help="Catalogue link to take latency and bandwidth from.")
@click.option("--link-latency", metavar="QUANTITY", help='Polled round trip, e.g. "15 us".')
@click.option("--link-bandwidth", metavar="QUANTITY", help='What a large transfer achieves, e.g. "55 GB/s".')
@click.option("--force", is_flag=True, help="Replace files that are there.")
@options.catalogue
@options.as_json
def command(
    report: Path,
    gpu_index: int,
    output: Path | None,
    name: str | None,
    title: str,
    like: str | None,
    read_bandwidth: str | None,
    kernel_floor: str | None,
    compute: str | None,
    topology: Path | None,
    link_output: Path | None,
    like_link: str | None,
    link_latency: str | None,
    link_bandwidth: str | None,
    force: bool,
    catalogue: str | None,
    as_json: bool,
) -> None:
    """Make a device file from REPORT, the output of `nvidia-smi -q -x`.

    The driver knows memory, power limit and PCIe link; bandwidth, kernel floor and compute come from flags or --like.
    """
    import tomllib
    from dataclasses import asdict

    from twin.errors import IngestError
    from twin.files import write_text
    from twin.ingest.device_text import Measured, device_toml, link_toml
    from twin.ingest.nvidia_smi import read_report, read_topology
    from twin.ingest.source import source
    from twin.lane.catalogue import build, catalogue_roots, load_entry
    from twin.lane.device import Device, Link

    roots = catalogue_roots(catalogue)
    gpus = read_report(source(report))
    if gpu_index >= len(gpus):
        raise IngestError(f"{report}: has {len(gpus)} GPUs, so --gpu is 0 to {len(gpus) - 1}.")
    gpu = gpus[gpu_index]
    chosen = name or (output.stem if output else None)
    if not chosen:
        raise IngestError("the device needs a name; pass --name, or -o NAME.toml.")
    if output is not None and output.stem != chosen:
        raise IngestError(f"{output}: the file of device {chosen!r} is called {chosen}.toml; make them equal.")
    model = load_entry("devices", like, roots) if like else None
    given = Measured(read_bandwidth, kernel_floor, compute)
    text = device_toml(gpu, chosen, title, given, model if isinstance(model, Device) else None)
    build(Device, tomllib.loads(text), str(output or chosen))
    connections = read_topology(source(topology)) if topology else []
    link_text = ""
    if link_output is not None:
        if not connections:
            raise IngestError("--link-output needs --topology, the output of `nvidia-smi topo -m`.")
        # The slowest way between any two GPUs is what a collective meets.
        order = ["SYS", "NODE", "PHB", "PXB", "PIX"]
        slowest = min(connections, key=lambda c: order.index(c.word) if c.word in order else len(order) + c.lanes)
        link = load_entry("links", like_link, roots) if like_link else None
        borrowed = link if isinstance(link, Link) else None
        link_text = link_toml(slowest, gpu, link_output.stem, link_latency, link_bandwidth, borrowed)
        build(Link, tomllib.loads(link_text), str(link_output))
    if output is not None:
        write_text(output, text, force=force)
    if link_output is not None:
        write_text(link_output, link_text, force=force)
    if as_json:
        document = {"schema_version": 1, "command": "import-device", "name": chosen, "gpus": [asdict(g) for g in gpus]}
        options.print_json(document | {"connections": [asdict(c) for c in connections]})
        return
    if output is None:
        click.echo(text, nl=False)
    for other in gpus:
        if other.name != gpu.name:
            click.echo(f"note: the report has another kind of GPU, {other.name}; import it with --gpu.", err=True)
            break
    for connection in connections:
        click.echo(f"{connection.first} - {connection.second}: {connection.word}, {connection.meaning}", err=True)
