"""The routes of the page's files, and of the pages that commands write."""
from __future__ import annotations

from collections.abc import Generator

from kbroker.http.messages import Answer, HttpRequest
from kbroker.http.routes import Route
from kbroker.page.outputs import PATHS, OutputPages
from kbroker.page.render import FILES, file_of_page


def file_routes() -> list[Route]:
    """Return the routes of the files that the page loads."""
    def show(request: HttpRequest) -> Answer:
        return Answer([file_of_page(request.path)], content_type=FILES[request.path])

    return [Route(path, show) for path in FILES]


def output_routes(outputs: OutputPages) -> list[Route]:
    """Return the routes of the pages that commands write."""
    def show(request: HttpRequest) -> Answer:
        def parts() -> Generator[object]:
            found = yield from outputs.answer(request.path, request.query)
            yield Answer([found.body], found.status, found.content_type, found.headers)

        return Answer(parts())

    return [Route(path, show) for path in PATHS]
