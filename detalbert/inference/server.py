"""Page and JSON endpoint for questions to a trained model: `python predict.py --serve`.

An event loop takes requests, and threads compute. Questions that arrive while the model is busy are
answered together, in packed rows; one that finds it idle is answered at once. Excess load is
rejected immediately: a body over the limit (413), a full queue (503), a wait over the limit (504).
"""

import asyncio
import signal
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import FileResponse, JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from pydantic import BaseModel, Field

from detalbert.errors import UserError
from detalbert.inference import web
from detalbert.inference.batching import Batcher, Waiting
from detalbert.inference.guard import LOOPBACK, Guard, describe_access, served_names
from detalbert.inference.model import Trained
from detalbert.inference.reply import Reply
from detalbert.processes import STOP_SIGNALS
from detalbert.squad.question_stream import MAX_QUESTION, check_text

# The page is one file: it takes nothing from elsewhere and talks to this server alone.
PAGE = Path(__file__).with_name("page.html")
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
    "connect-src 'self'"
)
PROBLEM = {"description": "one line, under `error`"}


class Ask(BaseModel):
    """A question and the text that may hold its answer."""

    question: str = Field(examples=["Who wrote it?"])
    context: str = Field(examples=["The book is by Ada."])


def make_app(
    trained: Trained, threshold: float, names: frozenset[str] = LOOPBACK, token: str | None = None
) -> FastAPI:
    """Create the application: the page, and what `/openapi.json` lists. Access is as in `Guard`."""
    facts: Any = {"title": "Questions and answers", "version": "1", "description": __doc__}
    app = FastAPI(**facts, exception_handlers=web.HANDLERS)
    registry = CollectorRegistry()
    batcher = Batcher(trained, threshold, registry)
    app.add_middleware(Guard, names=names, token=token, registry=registry)
    responses: Any = dict.fromkeys((400, 401, 408, 413, 421, 422, 503, 504), PROBLEM)

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(PAGE, headers={"Content-Security-Policy": POLICY})

    @app.get("/metrics")
    async def metrics() -> Response:
        """Return the metrics in Prometheus' text format."""
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/health")
    async def health() -> dict[str, Any]:
        """Return 200 as long as requests are answered, with the model and its limits."""
        kind = trained.model.config.model_type
        facts = {"model": kind, "name": Path(trained.hparams.model or kind).name}
        return {"status": "ok", **facts, "max_question": MAX_QUESTION, "max_context": web.CONTEXT}

    @app.post("/answer", response_model=Reply, responses=responses)
    async def answer(asked: Ask, request: Request) -> Any:
        """Find the answer to a question in a text, or say that the text has none."""
        # As it is: the framework would check each entry against `Reply` first.
        return JSONResponse((await respond(batcher, [asked], request))[0])

    @app.post("/answers", response_model=list[Reply], responses=responses)
    async def answers(
        asked: Annotated[list[Ask], Field(min_length=1, fail_fast=True)], request: Request
    ) -> Any:
        """Answer a list of questions, in order: all of them, or none."""
        return JSONResponse(await respond(batcher, asked, request))

    return app


async def respond(batcher: Batcher, asked: list[Ask], request: Request) -> list[dict[str, Any]]:
    """Return a reply for each question. Raises HTTPException for the first that fails."""
    replies: list[Any] = [asyncio.get_running_loop().create_future() for _ in asked]
    pairs = zip(asked, replies, strict=True)
    jobs = [Waiting(each.question.strip(), each.context, reply) for each, reply in pairs]
    left = asyncio.ensure_future(request.receive())  # after the body comes the client's end alone
    left.add_done_callback(lambda _: [reply.cancel() for reply in replies])
    try:
        for job in jobs:
            check_text("request", job.question, job.context, web.CONTEXT)
        batcher.submit(jobs)
        ends: Any = {"timeout": web.SECONDS, "return_when": asyncio.FIRST_EXCEPTION}
        done, late = await asyncio.wait(replies, **ends)
        if left.done():
            raise HTTPException(499, "the client closed the connection")
        for reply in done:
            reply.result()  # raises its error
        if late:
            text = f"no answer within {web.SECONDS:g} s; give a shorter context"
            raise HTTPException(504, text)
        return [asdict(reply.result()) for reply in replies]
    except UserError as error:
        raise HTTPException(422, str(error)) from None
    finally:
        left.cancel()  # and so are the replies that nobody waits for any more


def serve(
    trained: Trained, threshold: float, address: tuple[str, int], names: Any, token: str | None
) -> None:
    """Serve until SIGTERM or SIGINT. Raises UserError if the address is not available.

    Args:
        names: other names by which clients call the server.
        token: bearer token that clients must send, if any.
    """
    listener = web.listen(*address)
    served = served_names(address[0], names)
    app = make_app(trained, threshold, served, token)
    server = web.make_server(app)
    for number in STOP_SIGNALS:  # uvicorn's own handlers hand them on to these at the end
        signal.signal(number, lambda *_: setattr(server, "should_exit", True))
    host, port = listener.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    access = describe_access(host, served, token)
    print(f"serving on {url} (the endpoint: /openapi.json): {access}; Ctrl-C ends it", flush=True)
    server.run(sockets=[listener])
    print("stopped")
