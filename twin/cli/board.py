"""`twin board`."""

from __future__ import annotations

import click

from twin.cli import options


@click.command("board")
@click.option("--lane", "lane_name", type=options.LaneName(), default="sidecar", show_default=True, help="To start.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address; others reach all but loopback.")
@click.option("--port", type=click.IntRange(0, 65535), default=8765, show_default=True, help="0 takes a free one.")
@click.option("--allow-host", "allowed", multiple=True, metavar="NAME", help="Another name this page is opened by.")
@click.option("--open", "browse", is_flag=True, help="Open the page in the browser.")
@options.catalogue
@options.seed
def command(
    lane_name: str, host: str, port: int, allowed: tuple[str, ...], browse: bool, catalogue: str | None, seed: int
) -> None:
    """A local page to play with a lane: move k, streams and parts of the box, compare two settings, load receipts."""
    import contextlib

    from twin.endpoint.run import bind
    from twin.errors import TwinError
    from twin.lane.catalogue import catalogue_roots, load_lane

    try:
        import uvicorn

        from twin.board.app import make_app
        from twin.board.security import LOOPBACK
    except ImportError:
        raise TwinError("twin board needs the web extra; install it with: pip install 'twin-lane[web]'") from None
    roots = catalogue_roots(catalogue)
    load_lane(lane_name, roots)
    listener = bind(host, port)
    if host not in LOOPBACK:
        click.echo(f"warning: {host} can be reached from other machines, and the page has no password.", err=True)
    url = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}/"
    click.echo(f"twin board: {url} (Ctrl-C ends it)", err=True)
    if browse:
        import webbrowser

        webbrowser.open(url)
    app = make_app(roots, hosts=(*LOOPBACK, host, *allowed), seed=seed, start=lane_name)
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, limit_concurrency=64, timeout_keep_alive=30, server_header=False
    )
    with contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listener])
