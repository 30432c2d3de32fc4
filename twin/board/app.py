"""The board as a web application: one page, its assets, and a few JSON answers.

An answer is the result or {"error": "..."} with the words of the command line: a refused setting is a normal answer
that the page shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, select_autoescape
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from twin import __version__
from twin.board.answers import Answers
from twin.board.security import LOOPBACK, Guard
from twin.errors import TwinError

_HERE = Path(__file__).resolve().parent


def make_app(roots: Sequence[Path], *, hosts: Iterable[str] = LOOPBACK, seed: int = 0, start: str = "") -> Starlette:
    """The application for a catalogue. `hosts` are the names it answers to, `start` the lane the page opens with."""
    answers = Answers(roots, seed=seed)
    pages = Environment(loader=PackageLoader("twin.board"), autoescape=select_autoescape())
    page = pages.get_template("board.html").render(version=__version__, start=start)

    async def index(request: Request) -> Response:
        return HTMLResponse(page)

    async def receipts(request: Request) -> Response:
        try:
            body = await request.body()
        except ClientDisconnect:
            return Response(status_code=400)  # nobody is there to read it
        try:
            text = body.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            return JSONResponse({"error": f"the table is not UTF-8 text (byte {error.start})."})
        return await _json(answers.residuals, request.query_params, text)

    def asked(function: Callable[..., dict[str, Any]]) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            return await _json(function, request.query_params)

        return endpoint

    routes = [
        Route("/", index),
        Route("/api/options", asked(lambda query: answers.options())),
        Route("/api/answer", asked(answers.answer)),
        Route("/api/curve", asked(answers.curve)),
        Route("/api/export", asked(answers.export)),
        Route("/api/residuals", receipts, methods=["POST"]),
        Mount("/assets", StaticFiles(directory=_HERE / "assets")),
    ]
    return Starlette(routes=routes, middleware=[Middleware(Guard, hosts=tuple(hosts))])


async def _json(function: Callable[..., dict[str, Any]], *arguments: Any) -> Response:
    # Predictions are arithmetic: in a thread, so that the page's files are served meanwhile.
    try:
        return JSONResponse(await run_in_threadpool(function, *arguments))
    except TwinError as error:
        return JSONResponse({"error": str(error)})
