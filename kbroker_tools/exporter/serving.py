"""Serves the facts of a cluster over HTTP."""
from __future__ import annotations

from collections.abc import Callable, Generator

from kbroker.base.errors import KafkaError
from kbroker.client.cluster import Cluster
from kbroker.http.messages import Answer, HttpRequest
from kbroker.http.routes import Route, health_route
from kbroker.http.server import Purpose, listen
from kbroker.http.standalone import StandaloneServer
from kbroker.metrics.exposition import content_type, text_of
from kbroker.page.child import Commands
from kbroker.page.facts import PageFacts
from kbroker.page.outputs import OutputPages
from kbroker.page.render import HEADERS, HTML, page
from kbroker.page.routes import file_routes, output_routes
from kbroker.settings.exposure import is_loopback
from kbroker_tools.exporter.collector import Collector, Options
from kbroker_tools.exporter.metrics import samples
from kbroker_tools.exporter.page_facts import PageSource
from kbroker_tools.exporter.sharing import SharedFacts


def serve(cluster: Cluster, options: Options, host: str, port: int, interval_ms: int, place_options: tuple[str, ...],
          note: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT. `note` prints a line.

    `place_options` has the options with which a command reaches the cluster, for commands to copy from the page.
    Raise OSError if the address is not available. Raise KafkaError if the cluster refuses the first login.
    """
    listener = listen(host, port, Purpose('the exporter'))
    bound_host, bound_port = listener.getsockname()[:2]
    where = f'[{bound_host}]:{bound_port}' if ':' in bound_host else f'{bound_host}:{bound_port}'
    if not is_loopback(host):
        note(f'everyone who reaches {where} can read the names of topics, groups and transactional ids')
    server = StandaloneServer()
    refused: list[KafkaError] = []

    def refuse(error: KafkaError) -> None:
        refused.append(error)
        server.stop()

    title = ', '.join(f'{name}:{number}' for name, number in cluster.config.bootstrap)
    source = PageSource(title, place_options, server.clock)
    shared = SharedFacts(Collector(cluster, options, server.clock).collect, server.submit, interval_ms, server.clock,
                         note, refuse, source.note)
    shared.begin()
    note(f'serving http://{where}/metrics')
    commands = Commands(server.reactor, server.timers)

    def last_facts() -> Generator[object, None, PageFacts]:
        yield from ()
        return source.facts(shared.facts, shared.problem)

    outputs = OutputPages(commands, last_facts)
    server.run(listener, [*routes_of(shared, source), *output_routes(outputs)],
               only_local_names=is_loopback(host), at_end=commands.close)
    if refused:
        raise refused[0]


def routes_of(shared: SharedFacts, source: PageSource) -> list[Route]:
    """Return the routes: the page, the metrics, and the health of the exporter."""
    def show_page(request: HttpRequest) -> Answer:
        def parts() -> Generator[object]:
            facts = yield from shared.current()
            yield from page(source.facts(facts, shared.problem), request.query)

        return Answer(parts(), content_type=HTML, headers=HEADERS)

    def metrics(request: HttpRequest) -> Answer:
        form = content_type(request.headers.get('accept', ''))

        def parts() -> Generator[object]:
            shared.counts.scrapes += 1
            facts = yield from shared.current()
            yield from text_of(samples(facts, shared.counts), form)

        return Answer(parts(), content_type=form)

    return [Route('/', show_page), *file_routes(), Route('/metrics', metrics), health_route('/livez', lambda: None),
            health_route('/readyz', lambda: shared.problem)]
