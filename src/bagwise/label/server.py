"""The page's server: loopback only, a random token, and nothing but what it was given.

Every request needs the token (a cookie, or an Authorization header), a Host that names this server,
and, where it changes something, an Origin that is this server. The address to open holds a ticket
instead, which the first visit exchanges for the cookie; it works once. Bodies are small. A request
names instances by number, so that no path comes from outside.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
from collections.abc import Callable
from importlib.resources import files

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bagwise.files import BadFilesError
from bagwise.label.session import ConflictError, Session

HOST = "127.0.0.1"
MAX_BODY = 16 * 1024
_STATIC = {"page.js": "text/javascript", "page.css": "text/css"}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}

# The first visit goes on by itself. A redirect would count as coming from where the visit came
# from, a file or another program, and browsers keep a strict cookie from those. The empty icon
# keeps the browser from asking for one.
_GO_ON = (
    '<!doctype html><title>bagwise label</title><link rel="icon" href="data:,">'
    '<meta http-equiv="refresh" content="0; url=/">'
)


class _TooLargeError(Exception):
    """A body beyond the limit."""


class _Guard:
    """Refuses what does not come from our own page, and puts the policy on every answer."""

    def __init__(self, app: ASGIApp, token: str, port: int, on_visit: Callable[[], object]) -> None:
        self.app, self.token, self.on_visit = app, token, on_visit
        self.ticket = secrets.token_urlsafe(32)
        self.cookie = f"bagwise-{port}"
        self.hosts = {f"{HOST}:{port}", f"localhost:{port}"}
        self.origins = {f"http://{host}" for host in self.hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check, then pass on."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # no websockets here

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [(k.lower().encode(), v.encode()) for k, v in _HEADERS.items()]
                message["headers"] = [*message["headers"], *headers]
            await send(message)

        request = Request(scope)
        refusal = self._refusal(request)
        if refusal is not None:
            await refusal(scope, receive, send_guarded)
            return
        await self.app(scope, _limited(receive), send_guarded)

    def _refusal(self, request: Request) -> Response | None:
        if request.headers.get("host") not in self.hosts:
            return _problem(421, "this server answers only to its own address")
        ticket = request.query_params.get("token", "")
        if (request.method, request.url.path) == ("GET", "/") and _same(ticket, self.ticket):
            # Exchange the ticket for the cookie; the next visitor needs a new one.
            self.ticket = secrets.token_urlsafe(32)
            answer = HTMLResponse(_GO_ON)
            answer.set_cookie(self.cookie, self.token, httponly=True, samesite="strict")
            self.on_visit()
            return answer
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        by_header = _same(bearer, self.token)
        by_cookie = _same(request.cookies.get(self.cookie, ""), self.token)
        origin = request.headers.get("origin")
        if origin is not None and origin not in self.origins:
            return _problem(403, "requests from other pages are refused")
        if request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            return _problem(403, "requests from other pages are refused")
        if request.method not in ("GET", "HEAD") and origin is None and not by_header:
            return _problem(403, "a request that changes something needs its origin")
        if not (by_header or by_cookie):
            return _problem(401, "open the last address that bagwise label printed; it works once")
        length = request.headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > MAX_BODY:
            return _problem(413, "the body is too large")
        return None


def _same(text: str, secret: str) -> bool:
    return hmac.compare_digest(text.encode("utf-8", "replace"), secret.encode())


def _limited(receive: Receive) -> Receive:
    """A body without a length, sent in chunks, ends at the limit too."""
    seen = 0

    async def receive_limited() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > MAX_BODY:
            raise _TooLargeError
        return message

    return receive_limited


def _problem(status: int, what: str) -> JSONResponse:
    return JSONResponse({"error": what}, status_code=status)


class _Pages:
    """What a session answers to the page, one method per address.

    What is not a response is sent as JSON.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.assets = files("bagwise.label") / "assets"

    def page(self, request: Request) -> Response:
        html = (self.assets / "page.html").read_bytes()
        return Response(html, media_type="text/html; charset=utf-8")

    def static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in _STATIC:
            return _problem(404, "there is no such file")
        content = (self.assets / name).read_bytes()
        return Response(content, media_type=f"{_STATIC[name]}; charset=utf-8")

    def picture(self, request: Request) -> Response:
        row = request.path_params["row"]
        self.session.place(row)
        pictures = self.session.pictures
        picture = None if pictures is None else pictures.read(row)
        if picture is None:
            return _problem(404, "this instance has no picture")
        return Response(picture.content, media_type=picture.media_type)

    def state(self, request: Request) -> object:
        return self.session.state()

    def queue(self, request: Request) -> object:
        n = _number(request.query_params.get("n", "5"), 1, 20)
        keep = request.query_params.get("keep")
        tab = _text(request.query_params.get("tab", ""), 64)
        return self.session.queue(tab, n, None if keep is None else self._row(keep))

    def bags(self, request: Request) -> object:
        return self.session.bag_list()

    def bag(self, request: Request) -> object:
        return self.session.bag(request.path_params["number"])

    def answer(self, body: dict[str, object]) -> object:
        return self.session.answer(
            self._row(body.get("row")),
            _text(body.get("answer"), 8),
            tab=_text(body.get("tab", ""), 64),
            answer_id=_text(body.get("id", ""), 64),
            replace=body.get("replace") is True,
        )

    def undo(self, body: dict[str, object]) -> object:
        card = self.session.undo(_text(body.get("tab", ""), 64))
        return {"card": card, "state": self.session.state()}

    def learn(self, body: dict[str, object]) -> object:
        self.session.start_learning()
        return self.session.state()

    def settings(self, body: dict[str, object]) -> object:
        self.session.auto = _number(body.get("auto"), 0, 1000)
        return self.session.state()

    def _row(self, value: object) -> int:
        return _number(value, 0, self.session.bags.n_instances - 1)


def _reading(path: str, function: Callable[[Request], object]) -> Route:
    """A request that changes nothing; what cannot be answered is said in one line."""

    def endpoint(request: Request) -> Response:
        try:
            answer = function(request)
        except ValueError as error:
            return _problem(404, str(error))
        return answer if isinstance(answer, Response) else JSONResponse(answer)

    return Route(path, endpoint)


def _changing(path: str, function: Callable[[dict[str, object]], object]) -> Route:
    """A request that changes something; it is done when the answer comes."""

    async def endpoint(request: Request) -> Response:
        try:
            body = json.loads(await request.body())
        except _TooLargeError:
            return _problem(413, "the body is too large")
        except (ValueError, RecursionError):
            return _problem(400, "the body is not JSON")
        if not isinstance(body, dict):
            return _problem(400, "the body is not a JSON object")
        try:
            return JSONResponse(await run_in_threadpool(function, body))
        except ConflictError as error:
            return _problem(409, str(error))
        except BadFilesError as error:
            return _problem(507, f"the answer could not be saved: {error}")
        except ValueError as error:
            return _problem(400, str(error))
        except OSError as error:
            return _problem(507, f"the answer could not be saved: {error.strerror or error}")

    return Route(path, endpoint, methods=["POST"])


def _number(value: object, low: int, high: int) -> int:
    if isinstance(value, str) and value.isdecimal() and len(value) < 12:
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ValueError(f"a number from {low} to {high} is needed")
    return value


def _text(value: object, longest: int) -> str:
    if not isinstance(value, str) or len(value) > longest:
        raise ValueError(f"a text of at most {longest} characters is needed")
    return value


class LabelServer:
    """The server of one session, on a free port of the loopback address.

    Parameters
    ----------
    session : Session
    port : int, default=0
        0 takes a free one.
    on_visit : callable or None, default=None
        Called when `url` was opened, which works once: there is a new one from then on.

    Examples
    --------
    >>> from bagwise.label import LabelServer
    >>> server = LabelServer(session=None)  # which serves nothing
    >>> server.url.startswith("http://127.0.0.1:")
    True
    >>> server.close()
    """

    def __init__(
        self, session: Session, port: int = 0, on_visit: Callable[[], object] | None = None
    ) -> None:
        self.token = secrets.token_urlsafe(32)
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self.socket.bind((HOST, port))
        except OSError as error:
            self.socket.close()
            raise ValueError(f"port {port} cannot be used: {error.strerror}.") from error
        self.port = int(self.socket.getsockname()[1])
        pages = _Pages(session)
        routes = [
            _reading("/", pages.page),
            _reading("/static/{name}", pages.static),
            _reading("/api/state", pages.state),
            _reading("/api/queue", pages.queue),
            _reading("/api/bags", pages.bags),
            _reading("/api/bags/{number:int}", pages.bag),
            _reading("/api/pictures/{row:int}", pages.picture),
            _changing("/api/answer", pages.answer),
            _changing("/api/undo", pages.undo),
            _changing("/api/learn", pages.learn),
            _changing("/api/settings", pages.settings),
        ]
        self.app = _Guard(
            Starlette(routes=routes), self.token, self.port, on_visit or (lambda: None)
        )
        config = uvicorn.Config(self.app, log_level="warning", access_log=False, lifespan="off")
        self.server = uvicorn.Server(config)

    @property
    def url(self) -> str:
        """The address to open next; it works once."""
        return f"http://{HOST}:{self.port}/?token={self.app.ticket}"

    def run(self) -> None:
        """Serve until interrupted."""
        self.server.run(sockets=[self.socket])

    def close(self) -> None:
        """Stop serving."""
        self.server.should_exit = True
        self.socket.close()
