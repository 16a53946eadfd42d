"""Logins: from the first frame of a connection to its principal (KIP-43, KIP-152, KIP-368).

`security/session` has the login states of a connection, and `security/mechanism` has the SASL exchanges. This module
answers SaslHandshake and SaslAuthenticate. The table FRAMES says which other requests are served on a connection
without a valid login:

- A request that is allowed in the connection's state is served. Before the login, only ApiVersions, SaslHandshake and
  SaslAuthenticate are allowed in any state.
- Before the exchange of tokens, and after the session has expired, any other frame closes the connection immediately,
  without an answer.
- During the exchange of tokens, any other request is answered with ILLEGAL_SASL_STATE.

After a failed login, the broker waits for `connection.failed.authentication.delay.ms`, then sends the answer and closes
the connection. During the delay, it serves no other frame of this connection. Other connections are not delayed.
"""
from __future__ import annotations

import enum
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from kbroker.apis.serving.listener_logins import ListenerLogins, listener_logins
from kbroker.apis.serving.long_answers import Steps
from kbroker.apis.serving.token_checks import TokenChecks
from kbroker.base.errors import ConfigError, ErrorCode, KafkaError
from kbroker.base.lean_dataclasses import dataclass
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import (
    RemoveUserScramCredentialRecord,
    SaslAuthenticateResponse,
    SaslHandshakeResponse,
    UserScramCredentialRecord,
)
from kbroker.security.access import Access
from kbroker.security.audit import OK, outcome_of
from kbroker.security.failed_logins import FailedLogins
from kbroker.security.mechanism import AuthenticationError, Check, Exchange, Login, generic_text
from kbroker.security.principal import ANONYMOUS, USER, Principal
from kbroker.security.scram_credential import MECHANISM_CODES, ScramCredential
from kbroker.security.session import NEVER, LoginState, Session
from kbroker.security.surroundings import Background, Submit, Surroundings
from kbroker.settings.config import Config

MOST_TOKENS = 8
"""The most tokens of one login."""
RENEWAL_PAUSE_MS = 1000
"""The minimum time between the beginnings of two re-authentications. The first re-authentication may begin immediately
after the login."""
VERSION_WITH_HEADERS = 1
"""The first version of SaslHandshake after which clients send their tokens in SaslAuthenticate requests."""
AFTER_LOGIN = 'SaslAuthenticate request received after successful authentication'

NO_RECORD = UserScramCredentialRecord()

logger = logging.getLogger('kbroker.security')


class Verdict(enum.IntEnum):
    """The decision whether to serve a frame."""

    SERVE = 0
    REFUSE = 1
    CLOSE = 2


FRAMES: dict[LoginState, tuple[frozenset[ApiKey], Verdict]] = {
    LoginState.UNKNOWN: (frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE}), Verdict.CLOSE),
    LoginState.INTRODUCED: (frozenset({ApiKey.SASL_HANDSHAKE}), Verdict.CLOSE),
    LoginState.TOKENS: (frozenset({ApiKey.SASL_AUTHENTICATE}), Verdict.REFUSE),
    LoginState.RENEWING: (frozenset({ApiKey.SASL_AUTHENTICATE}), Verdict.REFUSE),
    LoginState.LOGGED_IN: (frozenset({ApiKey.SASL_HANDSHAKE}), Verdict.CLOSE),      # after the session's end
    LoginState.FAILED: (frozenset(), Verdict.CLOSE),
}
"""Maps each login state to the requests that are served, and to the verdict on all other requests."""


AMONG_TOKENS = frozenset({LoginState.TOKENS, LoginState.BARE_TOKENS, LoginState.RENEWING, LoginState.RENEWING_BARE})
"""The states in which a client and the broker exchange tokens."""


class Attempt:
    """A login in progress."""

    __slots__ = ('exchange', 'logins', 'mechanism', 'tokens')

    def __init__(self, mechanism: str, logins: ListenerLogins, exchange: Exchange | None):
        self.mechanism = mechanism
        self.logins = logins
        """The listener's logins that were in force when this attempt began."""
        self.exchange = exchange
        """The SASL exchange. None if a re-authentication uses another mechanism than the login: it then fails at its
        first token."""
        self.tokens = 0


class Authentication:
    """Logs in the clients of all connections."""

    token_checks: TokenChecks
    _surroundings: Surroundings

    def __init__(self, node: Any):
        self.listeners: dict[str, ListenerLogins] = {}
        """Maps each listener name to the listener's logins."""
        self.failed_logins = FailedLogins(node.clock)
        self.logins: Counter[str] = Counter()
        """The logins and re-authentications that succeeded, by mechanism; `TLS` stands for certificates."""
        self.failures: Counter[str] = Counter()
        """The logins and re-authentications that failed; `unknown` stands for a mechanism that is not enabled."""
        self._node = node
        self._connections: dict[str, set[Any]] = {}
        """Maps each SCRAM user to the user's connections. Empty unless `kbroker.end.sessions.of.changed.users` is
        true."""

    # ---- settings

    def start(self, background: Background, compute: Submit) -> None:
        """Create and start the mechanisms of all listeners. The metadata must be open. This may wait for the network.

        `compute` submits a job to a worker that runs only jobs without I/O. Raise ConfigError if a setting is invalid.
        """
        node = self._node
        self.token_checks = TokenChecks(compute)
        self._surroundings = Surroundings(self._find_credential, node.clock, scram_secret(node.metadata.directory_id),
                                          background)
        for listener in node.config.bound_listeners:
            logins = listener_logins(node.config, listener, self._surroundings)
            for mechanism in logins.mechanisms.values():
                mechanism.load()
                mechanism.start()
                for warning in mechanism.warnings:
                    logger.warning('listener %s: %s', listener.name, warning)
            self.listeners[listener.name] = logins
        node.checks.append(self.check)
        node.on_reconfigured.append(self._reconfigure)
        if node.config.kbroker_end_sessions_of_changed_users:
            node.metadata.commits.on_change.append(self._end_sessions)

    def stop(self) -> None:
        """Stop the background work of all mechanisms."""
        for logins in self.listeners.values():
            for mechanism in logins.mechanisms.values():
                mechanism.close()

    def connection_closed(self, connection: Any) -> None:
        """Remove a closed connection. If its client closed it after the refusal of a token, note a failed login."""
        session = connection.session
        if session is not None and session.attempt is not None and session.state in AMONG_TOKENS:
            exchange = session.attempt.exchange
            if exchange is not None and exchange.refusal is not None:
                self.failed_logins.note(connection.client_host)
                self._audit(connection, session.is_renewing, outcome_of(ErrorCode.SASL_AUTHENTICATION_FAILED),
                            session.attempt.mechanism, session.principal,
                            claimed_name=exchange.refusal.claimed_name, reason=exchange.refusal.reason)
        if self._connections and connection.session is not None:
            name = connection.session.principal.name
            connections = self._connections.get(name)
            if connections is not None:
                connections.discard(connection)
                if not connections:
                    del self._connections[name]

    def _end_sessions(self, records: Sequence[Any]) -> None:
        """Close the connections of users whose credential was changed or deleted, once their requests in flight are
        answered."""
        for record in records:
            if isinstance(record, UserScramCredentialRecord | RemoveUserScramCredentialRecord):
                for connection in self._connections.get(record.name, ()):
                    if MECHANISM_CODES[connection.session.mechanism] == record.mechanism:
                        connection.close_after_flush()

    def _find_credential(self, mechanism: str, name: str) -> ScramCredential | None:
        record = self._node.metadata.image.scram_credentials.get((name, MECHANISM_CODES[mechanism]))
        found = record or NO_RECORD     # the same steps for every name, so that their number does not show who exists
        credential = ScramCredential(found.salt, found.stored_key, found.server_key, found.iterations)
        return (credential, None)[record is None]

    def check(self, config: Config, _given: Iterable[str]) -> Steps:
        """Check the login settings of `config`, which is not in force yet.

        Raise KafkaError INVALID_REQUEST if a setting is invalid. Key sets and other sources to which settings refer are
        not read, because this could wait for the network.
        """
        for before in self.listeners.values():
            try:
                listener_logins(config, before.listener, self._surroundings, before)
            except ConfigError as error:
                raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from None
            yield

    def _reconfigure(self) -> None:
        """Use changed settings for new logins. If a listener's new settings do not work, keep its old logins."""
        for name, before in self.listeners.items():
            try:
                after = listener_logins(self._node.config, before.listener, self._surroundings, before)
            except ConfigError as error:
                logger.error('listener %s: its logins stay as they were: %s', name, error)
                continue
            if after.texts != before.texts:
                self._surroundings.background.submit(partial(load_new, after, before),
                                                     partial(self._adopt, after, before))

    def _adopt(self, after: ListenerLogins, before: ListenerLogins, error: object) -> None:
        name = before.listener.name
        if self.listeners[name] is not before:
            self._reconfigure()     # after a change that came later
        elif isinstance(error, BaseException):
            logger.error('listener %s: its logins stay as they were: %s', name, error)
        else:
            self.listeners[name] = after
            kept = set(map(id, after.mechanisms.values()))
            for mechanism in before.mechanisms.values():
                if id(mechanism) not in kept:
                    mechanism.close()
            for mechanism in after.mechanisms.values():
                if mechanism not in before.mechanisms.values():
                    mechanism.start()
            logger.info('listener %s: clients log in by %s', name, ', '.join(after.mechanisms))

    # ---- connections

    def open(self, connection: Any) -> Session:
        """Return the session of a new connection."""
        logins = self.listeners[connection.listener_name]
        if logins.listener.has_login:
            connection.await_login(logins.largest_frame_bytes)
            return Session(ANONYMOUS, None, LoginState.UNKNOWN)
        if logins.listener.has_tls:
            connection.await_login(0)
            return Session(ANONYMOUS, None, LoginState.UNIDENTIFIED)
        return Session(ANONYMOUS, self._access(ANONYMOUS, connection))

    def _access(self, principal: Principal, connection: Any) -> Access | None:
        authorizer = self._node.authorizer
        return None if authorizer is None else authorizer.access_of(principal, connection.client_host)

    def verdict(self, connection: Any, session: Session, key: int) -> Verdict:
        """Return the verdict on a frame with this API key. The session's login is not complete, or the session can
        expire."""
        if session.state == LoginState.UNIDENTIFIED and not self._identify(connection, session):
            return Verdict.CLOSE
        if session.state == LoginState.LOGGED_IN and self._node.clock.monotonic_ms() < session.expires_ms:
            return Verdict.SERVE
        allowed, otherwise = FRAMES[session.state]
        return Verdict.SERVE if key in allowed else otherwise

    def _identify(self, connection: Any, session: Session) -> bool:
        """Log a TLS client in by its certificate. Return False if the principal of the certificate cannot be
        determined."""
        from kbroker.security.der import CertificateError
        from kbroker.security.principal_mapping import MappingError, principal_of_certificate

        certificate = connection.peer_certificate
        principal = ANONYMOUS
        if certificate is not None:
            try:
                principal = principal_of_certificate(certificate, self.listeners[connection.listener_name].rules)
            except (MappingError, CertificateError) as error:
                logger.info('%r: failed authentication: %s', connection, error)
                self._audit(connection, False, outcome_of(ErrorCode.SASL_AUTHENTICATION_FAILED), 'TLS', principal,
                            reason=str(error))
                return False
        self._audit(connection, False, OK, 'TLS', principal)
        session.log_in(principal, self._access(principal, connection))
        connection.end_login()
        return True

    # ---- SaslHandshake

    def handshake(self, request: Any, mechanism: str) -> Any:
        """Return the answer to SaslHandshake, or None if the answer is sent later."""
        session, now_ms = request.connection.session, self._node.clock.monotonic_ms()
        logins = self.listeners.get(request.connection.listener_name)
        if session is None or logins is None or (session.state == LoginState.LOGGED_IN and (
                session.expires_ms == NEVER or now_ms - session.renewed_ms < RENEWAL_PAUSE_MS)):
            return SaslHandshakeResponse(error_code=int(ErrorCode.ILLEGAL_SASL_STATE), mechanisms=[])
        if mechanism not in logins.mechanisms:
            return self._refuse_mechanism(request, session, logins)
        is_first = session.state != LoginState.LOGGED_IN
        wait_ms = self.failed_logins.wait_ms(request.client_host) if is_first else 0
        if wait_ms is None:
            request.connection.close('too many logins of this address failed, and too many wait', logging.DEBUG)
            return None
        if not wait_ms:
            return self._begin(request, mechanism, logins)
        self._node.timers.after(wait_ms, lambda: request.is_wanted() and request.reply(
            self._begin(request, mechanism, logins)))
        return None

    def _refuse_mechanism(self, request: Any, session: Session, logins: ListenerLogins) -> None:
        if session.state == LoginState.LOGGED_IN:
            request.connection.close('re-authentication by a mechanism that is not enabled', logging.INFO)
            return
        self._fail(request, 'the mechanism is not enabled', SaslHandshakeResponse(
            error_code=int(ErrorCode.UNSUPPORTED_SASL_MECHANISM), mechanisms=list(logins.mechanisms)))

    def _begin(self, request: Any, mechanism: str, logins: ListenerLogins) -> Any:
        session = request.connection.session
        has_headers = request.version >= VERSION_WITH_HEADERS
        if session.state == LoginState.LOGGED_IN:
            session.renewed_ms = self._node.clock.monotonic_ms()
            is_same = mechanism == session.mechanism
            session.attempt = Attempt(mechanism, logins,
                                      logins.mechanisms[mechanism].begin() if is_same else None)
            session.move(LoginState.RENEWING if has_headers else LoginState.RENEWING_BARE)
        else:
            session.attempt = Attempt(mechanism, logins, logins.mechanisms[mechanism].begin())
            session.move(LoginState.TOKENS if has_headers else LoginState.BARE_TOKENS)
        return SaslHandshakeResponse(error_code=0, mechanisms=list(logins.mechanisms))

    # ---- tokens

    def authenticate(self, request: Any, token: bytes) -> Any:
        """Return the answer to SaslAuthenticate, or None if the answer is sent later."""
        session = request.connection.session
        if session is None or session.state == LoginState.LOGGED_IN:
            return failure(ErrorCode.ILLEGAL_SASL_STATE, AFTER_LOGIN)
        return self._advance(request, WITH_HEADERS, partial(self._step, session, token))

    def take_bare_token(self, request: Any, token: bytes) -> Any:
        """Return the answer to a token that was sent without a request header. Return None if the answer is sent later
        or the login failed.

        The client notices a failed login only by the closed connection.
        """
        return self._advance(request, BARE, partial(self._step, request.connection.session, token))

    def _step(self, session: Session, token: bytes) -> bytes | Check:
        attempt: Attempt = session.attempt
        attempt.tokens += 1
        if attempt.exchange is None:
            raise AuthenticationError(None, f're-authentication by {attempt.mechanism}, expected {session.mechanism}')
        if attempt.tokens > MOST_TOKENS:
            raise AuthenticationError(None, f'found more than {MOST_TOKENS} tokens in one login')
        return attempt.exchange.step(token)

    def _advance(self, request: Any, form: Form, step: Callable[[], bytes | Check]) -> Any:
        """Do a step of a login. Return the answer in this form, or None if the answer is sent later."""
        session = request.connection.session
        attempt: Attempt = session.attempt
        try:
            found = step()
            if isinstance(found, bytes):
                outcome = None if attempt.exchange is None else attempt.exchange.outcome
                lifetime_ms = 0 if outcome is None else self._complete(request.connection, session, outcome)
                return form.answer(found, lifetime_ms)
        except AuthenticationError as error:
            self._refuse(request, form, error)
            return None
        except Exception as error:
            logger.error('%r: a step of its login failed', request.connection, exc_info=error)
            self._refuse(request, form, AuthenticationError(None, 'an error of the broker'))
            return None
        if not self.token_checks.add(found, partial(self._end_check, request, form), request.is_wanted):
            request.connection.close('too many tokens wait for the check of their signature', logging.DEBUG)
        return None

    def _end_check(self, request: Any, form: Form, result: Any) -> None:
        """Continue a login with the result of its token check. Since the token arrived, no other frame of the
        connection was served."""
        if isinstance(result, BaseException):
            logger.error('the check of a token failed, so the token is refused', exc_info=result)
        exchange = request.connection.session.attempt.exchange
        answer = self._advance(request, form, partial(exchange.resume, result is True))
        if answer is not None:
            form.send(request, answer)

    def _complete(self, connection: Any, session: Session, login: Login) -> int:
        """Log the client in. Return the lifetime of the session in ms, or 0 if it is unlimited."""
        principal = Principal(USER, login.name)
        if session.is_renewing and principal != session.principal:
            text = ('Cannot change principals during re-authentication from '
                    f'{kafka_text(session.principal)}: {kafka_text(principal)}')
            raise AuthenticationError(text, text, login.name)
        clock, mechanism = self._node.clock, session.attempt.mechanism
        logins = self.listeners[connection.listener_name]
        if logins.mechanisms.get(mechanism) is not session.attempt.logins.mechanisms[mechanism]:
            raise AuthenticationError(None, 'the settings of the mechanism changed during the login', login.name)
        limits_ms = []
        if login.expires_ms is not None:
            limits_ms.append(max(0, login.expires_ms - clock.wall_ms()))
        if reauth_ms := logins.lifetimes_ms[mechanism]:
            limits_ms.append(reauth_ms)
        was_renewing = session.is_renewing
        session.mechanism = mechanism
        session.log_in(principal, self._access(principal, connection),
                       clock.monotonic_ms() + min(limits_ms) if limits_ms else NEVER)
        self._audit(connection, was_renewing, OK, mechanism, principal)
        if not was_renewing:
            connection.end_login()
            if mechanism in MECHANISM_CODES and self._node.config.kbroker_end_sessions_of_changed_users:
                self._connections.setdefault(principal.name, set()).add(connection)
        return min(limits_ms, default=0)

    def _audit(self, connection: Any, is_renewal: bool, outcome: str, mechanism: str | None, principal: Principal,
               **failure_fields: str | None) -> None:
        counts = self.logins if outcome == OK else self.failures
        counts[mechanism or 'unknown'] += 1
        self._node.audit.write(
            'reauthentication' if is_renewal else 'login', outcome=outcome, principal=str(principal),
            host=connection.client_host, listener=connection.listener_name, mechanism=mechanism, **failure_fields)

    # ---- failures

    def _refuse(self, request: Any, form: Form, error: AuthenticationError) -> None:
        """End a login because its token was refused or the check of its token failed."""
        session = request.connection.session
        attempt: Attempt = session.attempt
        self.failed_logins.note(request.client_host)
        text = error.client_text or generic_text(attempt.mechanism, is_renewal=session.is_renewing)
        self._fail(request, error.reason, None if attempt.exchange is None else form.failure(text), error.claimed_name)

    def refuse(self, request: Any, response: Any) -> None:
        """Answer a request that is not allowed during the exchange of tokens with `response`, and end the
        connection."""
        self._fail(request, f'{request.api.key.name} among the tokens of a login', response)

    def _fail(self, request: Any, reason: str, response: Any, claimed_name: str | None = None) -> None:
        """End a failed login. After the configured delay, send `response` unless it is None, and close the
        connection."""
        connection = request.connection
        session = connection.session
        logger.info('%r: failed %sauthentication: %s', connection, 're-' if session.is_renewing else '', reason)
        self._audit(connection, session.is_renewing, outcome_of(ErrorCode.SASL_AUTHENTICATION_FAILED),
                    None if session.attempt is None else session.attempt.mechanism, session.principal,
                    claimed_name=claimed_name, reason=reason)
        session.move(LoginState.FAILED)
        connection.close_after_flush()

        def end() -> None:
            if response is None:
                connection.close('its login failed', logging.DEBUG)
            else:
                request.reply(response)

        delay_ms = self._node.config.connection_failed_authentication_delay_ms
        if delay_ms:
            self._node.timers.after(delay_ms, end)
        else:
            end()


@dataclass(frozen=True, slots=True)
class Form:
    """One of the two forms in which tokens are sent: in SaslAuthenticate messages, or bare."""

    answer: Callable[[bytes, int], Any]
    """Returns the answer for (token for the client, lifetime of the session in ms)."""
    failure: Callable[[str], Any]
    """Returns the answer for the text of an error, or None if the form has no error answers."""
    send: Callable[[Any, Any], object]
    """(request, answer)"""


WITH_HEADERS = Form(
    lambda token, lifetime_ms: SaslAuthenticateResponse(error_code=0, error_message='', auth_bytes=token,
                                                        session_lifetime_ms=lifetime_ms),
    lambda text: failure(ErrorCode.SASL_AUTHENTICATION_FAILED, text),
    lambda request, answer: request.reply(answer))
BARE = Form(lambda token, _: token, lambda text: None, lambda request, answer: request.reply_bare(answer))


def load_new(after: ListenerLogins, before: ListenerLogins) -> None:
    """Load the mechanisms in `after` that are not in `before`. This may wait for the network."""
    for mechanism in after.mechanisms.values():
        if mechanism not in before.mechanisms.values():
            mechanism.load()


def scram_secret(directory_id: bytes) -> bytes:
    """Return the secret from which the salts of unknown users are derived.

    The directory id is fit for this: it is random, it never changes, and no API returns it.
    """
    return b'salts of unknown users' + directory_id


def failure(code: ErrorCode, message: str) -> Any:
    return SaslAuthenticateResponse(error_code=int(code), error_message=message, auth_bytes=b'')


def kafka_text(principal: Principal) -> str:
    """Return a principal in the form that Kafka uses in the message about changed principals, and nowhere else."""
    return f'{principal.type}.{principal.name}'
