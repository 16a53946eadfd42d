"""The TLS contexts of the listeners. They are built again when their settings or files change.

New connections use the newest context; open connections keep theirs. A worker reads the files, because decrypting a key
can take a second. If the changed settings or files do not work, the previous context stays in use, and the error is
logged once.

A certificate that is not valid at its time is one of these errors. `TlsContexts.look` reports each day which of the
certificates in use have expired, or soon will. It reads no files.
"""
from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Generator, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from kbroker.base.clock import Clock
from kbroker.base.errors import ConfigError, ErrorCode, KafkaError
from kbroker.base.long_work import result_of
from kbroker.log.jobs import Submit
from kbroker.security.certificates import (
    DAY_S,
    Certificate,
    Problem,
    certificates_of,
    next_change_s,
    problems_of,
)
from kbroker.security.tls import server_context
from kbroker.settings.config import Config
from kbroker.settings.file_modes import check_secret_file, holds_private_key
from kbroker.settings.listeners import PREFIX

LOCATION = '.location'
KEY_FILES = ('ssl.keystore.location', 'ssl.truststore.location')

logger = logging.getLogger('kbroker.network')

Marks = tuple[tuple[str, int, int, int], ...]
"""The path, time of change, size and inode of each file."""


class Source(NamedTuple):
    """The input of a context: the texts of the settings, and the marks of the files that these settings name."""

    texts: Mapping[str, str]
    marks: Marks


class Context(NamedTuple):
    """The context of a listener, and its certificates."""

    context: ssl.SSLContext
    certificates: tuple[Certificate, ...]


class Built(NamedTuple):
    """The result of building a context: the context, or the problem if building it failed."""

    source: Source
    context: Context | None
    problem: str = ''


class TlsContexts:
    """The TLS contexts, one for each listener with TLS.

    The constructor raises ConfigError if a setting is not valid, or a certificate not at this time, and OSError if a
    file cannot be read. It logs a warning for a certificate that expires soon.
    """

    def __init__(self, config: Config, submit: Submit, clock: Clock | None = None):
        self._config = config
        self._clock = clock or Clock()
        self._submit = submit
        self._is_building = False
        self._wants_another = False
        self._contexts: dict[str, Context] = {}
        self._tried: dict[str, Source] = {}
        """Maps each listener to the source of its last context, even if building that failed.

        A context is built again when its source has changed.
        """
        for name, texts in tls_settings_of(config).items():
            self._tried[name] = Source(texts, marks_of(texts))
            self._contexts[name] = self._context_of(texts)
        self._report(self._contexts)

    def _context_of(self, texts: Mapping[str, str]) -> Context:
        """Build a context. Raise ConfigError if a setting or a certificate is not valid, or every user may read a
        private key.
        """
        context, problems = _build(texts, self._config)
        for problem in problems:
            logger.warning('%s', problem.text)
        for problem in problems_of(context.certificates, self._now_s()):
            if problem.level == logging.ERROR:
                raise ConfigError(problem.setting, problem.text)
        return context

    def _now_s(self) -> int:
        return self._clock.wall_ms() // 1000

    @property
    def certificates(self) -> dict[str, tuple[Certificate, ...]]:
        """The certificates of each listener's newest context."""
        return {name: found.certificates for name, found in self._contexts.items()}

    def look(self) -> None:
        """Log a line for each certificate in use that is not valid, or soon is not."""
        self._report(self._contexts)

    @property
    def next_look_ms(self) -> int:
        """The milliseconds until the next look: a day, or less if a certificate expires before."""
        now_s = self._now_s()
        ends_s = [next_change_s(found.certificates, now_s) for found in self._contexts.values()]
        return 1000 * min([DAY_S, *(end_s for end_s in ends_s if end_s is not None)])

    def _report(self, listeners: Iterable[str]) -> None:
        """Log the problems of these listeners' certificates. Listeners that share a file share its lines."""
        found: dict[Problem, None] = {}
        for listener in listeners:
            found |= dict.fromkeys(problems_of(self._contexts[listener].certificates, self._now_s()))
        for problem in found:
            logger.log(problem.level, '%s', problem.text)

    def context(self, listener: str) -> ssl.SSLContext:
        """Return the newest context of a listener. New connections use it."""
        return self._contexts[listener].context

    def reload(self) -> None:
        """Let the worker build new contexts for the listeners whose settings or files have changed."""
        if self._is_building:
            self._wants_another = True
            return
        if self._contexts:
            self._is_building = True
            job = partial(self._build_changed, tls_settings_of(self._config), dict(self._tried))
            self._submit(job, self._adopt)

    def _adopt(self, results: Any) -> None:
        """Use the contexts that the worker has built for new connections."""
        self._is_building = False
        if isinstance(results, BaseException):
            raise results
        for name, built in results.items():
            self._tried[name] = built.source
            if built.context is not None:
                self._contexts[name] = built.context
                logger.info('listener %s: key and certificates were read again, for new connections', name)
            else:
                logger.error('listener %s: new connections use the key and certificates as before: %s', name,
                             built.problem)
        self._report([name for name, built in results.items() if built.context is not None])
        if self._wants_another:
            self._wants_another = False
            self.reload()

    def check(self, config: Config, given: Iterable[str]) -> Generator[object]:
        """Check a configuration that is not in force yet: build its TLS contexts on the worker.

        `given` has the names of the settings that a client sets. If a TLS setting of a listener is among them, read its
        files again, even if their paths have not changed. Raise KafkaError INVALID_REQUEST if a context cannot be
        built.
        """
        names = tuple(given)
        wanted = {listener: texts for listener, texts in tls_settings_of(config).items() if listener in self._contexts
                  and any(name.startswith(f'{PREFIX}{listener.lower()}.ssl.') for name in names)}
        if not wanted:
            return
        result = yield from result_of(
            partial(self._submit, partial(self._build_changed, wanted, dict(self._tried))))
        if isinstance(result, BaseException):
            raise result
        for built in result.values():
            if built.context is None:
                raise KafkaError(ErrorCode.INVALID_REQUEST, built.problem)

    def _build_changed(self, wanted: Mapping[str, Mapping[str, str]], tried: Mapping[str, Source]) -> dict[str, Built]:
        """Build the contexts whose source differs from the one in `tried`. The worker calls this."""
        built = {}
        for name, texts in wanted.items():
            source = Source(texts, marks_of(texts))     # marked before the files are read: no change is missed
            if tried.get(name) != source:
                built[name] = self._build(source)
        return built

    def _build(self, source: Source) -> Built:
        try:
            return Built(source, self._context_of(source.texts))
        except ConfigError as error:
            return Built(source, None, str(error))
        except OSError as error:
            return Built(source, None, f'{error.filename}: {error.strerror}')


def _build(texts: Mapping[str, str], config: Config) -> tuple[Context, list[Problem]]:
    """Build a context from its settings. Return it, and warnings about its files.

    Raise ConfigError if a setting is not valid or every user may read a private key, OSError if a file cannot be read.
    """
    warnings = []
    for name in KEY_FILES:
        path = texts.get(name)
        if path is not None and holds_private_key(path):
            warnings += [Problem(logging.WARNING, name, text) for text in
                         check_secret_file(path, 'the private key', config.kbroker_allow_readable_secrets)]
    context = server_context(dict(texts))
    certificates, unreadable = certificates_of(texts)
    return Context(context, tuple(certificates)), warnings + unreadable


def problems_of_files(config: Config, now_s: int) -> list[Problem]:
    """Return the problems of the files that the TLS settings name, as the start of a broker would find them."""
    from kbroker.base.os_errors import describe  # needed only after an error

    found: dict[Problem, None] = {}
    for texts in tls_settings_of(config).values():
        try:
            context, problems = _build(texts, config)
            found |= dict.fromkeys(problems + problems_of(context.certificates, now_s))
        except ConfigError as error:
            found[Problem(logging.ERROR, error.name, str(error))] = None
        except OSError as error:
            found[Problem(logging.ERROR, '', describe(error))] = None
    return list(found)


def tls_settings_of(config: Config) -> dict[str, dict[str, str]]:
    """Return the `ssl.` settings in force for each listener with TLS, and for `metrics.listen`."""
    listeners = [*config.bound_listeners, *([config.metrics_listener] if config.metrics_listener else [])]
    return {listener.name: config.for_listener(listener.name).texts('ssl.')
            for listener in listeners if listener.has_tls}


def marks_of(texts: Mapping[str, str]) -> Marks:
    """Return a mark for each file that exists. A change of the file's content changes its mark."""
    marks = []
    for name, path in texts.items():
        if name.endswith(LOCATION):
            try:
                found = os.stat(path)
            except OSError:
                continue
            marks.append((path, found.st_mtime_ns, found.st_size, found.st_ino))
    return tuple(marks)
