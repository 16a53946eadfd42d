"""Names of topics, groups and transactional ids for the completion of a shell, from the broker or the directory."""
from __future__ import annotations

import contextlib
import io
import signal
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

if TYPE_CHECKING:
    from kbroker_tools.base.view import View

MOST_SECONDS = 1.0
"""The longest time that a user waits for the Tab key."""
TIMES = {'request.timeout.ms': '1000', 'default.api.timeout.ms': '1000', 'socket.connection.setup.timeout.ms': '1000'}

KINDS: dict[str, Callable[[View], Iterable[str]]] = {
    'topic': lambda view: view.topics(),
    'group': lambda view: view.groups(),
    'transactional id': lambda view: (row.transactional_id for row in view.transactions()),
}
"""Maps each kind of name to the function that lists the names."""


class _TooLongError(BaseException):
    """The time is over. No other code may catch this error."""


def names_of(context: click.Context, kind: str, prefix: str) -> list[str]:
    """Return the names of a kind that begin with `prefix`, sorted.

    Return no names if there is no broker, if it refuses the request, or after MOST_SECONDS. A completion must not
    disturb the line that the user types, so it prints no message.
    """
    with contextlib.suppress(Exception, _TooLongError), contextlib.redirect_stderr(io.StringIO()), _limited_time():
        view = _open(context)
        try:
            return sorted(name for name in KINDS[kind](view) if name.startswith(prefix))
        finally:
            view.close()
    return []


@contextlib.contextmanager
def _limited_time() -> Iterator[None]:
    """End the block with _TooLongError after MOST_SECONDS. The name of a host is resolved without a limit otherwise."""
    def end(number: int, frame: Any) -> None:
        raise _TooLongError

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, MOST_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _open(context: click.Context) -> View:
    """Open the cluster or the directory that the line names so far."""
    data_dir = _given(context, 'data_dir')
    if data_dir is not None:
        from kbroker_tools.cluster.directory_view import DirectoryView
        return DirectoryView(data_dir)
    from kbroker.client.config import ClientConfig
    from kbroker_tools.cluster.live_view import LiveView
    return LiveView(ClientConfig.load(_given(context, 'bootstrap_server'), _given(context, 'command_config'), TIMES))


def _given(context: click.Context, name: str) -> Any:
    """Return the value of an option: of the command, of its group, or the one that `place.fill_in` has found."""
    each: click.Context | None = context
    while each is not None:
        if each.params.get(name) is not None and each.get_parameter_source(name) == ParameterSource.COMMANDLINE:
            return each.params[name]
        each = each.parent
    return context.params.get(name)
