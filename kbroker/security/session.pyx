"""The client at the other end of a connection, and the state of its login. The states are:

    UNIDENTIFIED    a TLS connection without SASL, whose first frame shows that the handshake is done
    UNKNOWN         only ApiVersions and SaslHandshake are served
    INTRODUCED      ApiVersions was answered, and only SaslHandshake is served
    TOKENS          a mechanism is chosen, and the frames are SaslAuthenticate requests
    BARE_TOKENS     a mechanism is chosen, and the frames are tokens without a header (SaslHandshake 0)
    LOGGED_IN       requests are served
    RENEWING        a logged-in client logs in again (KIP-368) by SaslAuthenticate requests
    RENEWING_BARE   a logged-in client logs in again by tokens without a header
    FAILED          no request is served, and the connection closes
"""
from libc.stdint cimport INT64_MAX

from kbroker.security.access cimport Access

TRANSITIONS = {
    LoginState.UNIDENTIFIED: (LoginState.LOGGED_IN, LoginState.FAILED),
    LoginState.UNKNOWN: (LoginState.INTRODUCED, LoginState.TOKENS, LoginState.BARE_TOKENS, LoginState.FAILED),
    LoginState.INTRODUCED: (LoginState.TOKENS, LoginState.BARE_TOKENS, LoginState.FAILED),
    LoginState.TOKENS: (LoginState.LOGGED_IN, LoginState.FAILED),
    LoginState.BARE_TOKENS: (LoginState.LOGGED_IN, LoginState.FAILED),
    LoginState.LOGGED_IN: (LoginState.RENEWING, LoginState.RENEWING_BARE),
    LoginState.RENEWING: (LoginState.LOGGED_IN, LoginState.FAILED),
    LoginState.RENEWING_BARE: (LoginState.LOGGED_IN, LoginState.FAILED),
    LoginState.FAILED: (),
}

NEVER = INT64_MAX

cdef enum:
    LONG_AGO = -1_000_000_000


cdef class Session:
    """The principal of a connection, the principal's rights, the state of the login, and the time at which it
    expires.
    """

    def __init__(self, principal not None, Access access=None, LoginState state=LOGGED_IN):
        self.principal = principal
        self.access = access
        self.state = state
        self.expires_ms = INT64_MAX
        self.renewed_ms = LONG_AGO
        self.is_guarded = state != LOGGED_IN

    @property
    def is_renewing(self):
        return self.state == RENEWING or self.state == RENEWING_BARE

    @property
    def takes_bare_tokens(self):
        return self.state == BARE_TOKENS or self.state == RENEWING_BARE

    def move(self, LoginState wanted):
        """Enter the state `wanted`. Raise ValueError if this state may not follow the present state."""
        if wanted not in TRANSITIONS[LoginState(self.state)]:
            raise ValueError(f'login: {LoginState(wanted).name} does not follow {LoginState(self.state).name}')
        self.state = wanted
        self.is_guarded = wanted != LOGGED_IN or self.expires_ms != INT64_MAX

    def log_in(self, principal, Access access, int64_t expires_ms=INT64_MAX):
        """Complete a login.

        `expires_ms` is the time by which the client must log in again, in ms of the monotonic clock.
        """
        self.principal = principal
        self.access = access
        self.expires_ms = expires_ms
        self.attempt = None
        self.move(LOGGED_IN)
