"""The states of a login session, and the transitions that it refuses."""
import itertools

import pytest

from kbroker.security.principal import ANONYMOUS, Principal
from kbroker.security.session import NEVER, TRANSITIONS, LoginState, Session


def test_every_state_has_its_transitions():
    assert set(TRANSITIONS) == set(LoginState)


@pytest.mark.parametrize(('state', 'wanted'), itertools.product(LoginState, LoginState))
def test_only_the_transitions_of_the_table_happen(state, wanted):
    session = Session(ANONYMOUS, None, state)
    if wanted in TRANSITIONS[state]:
        session.move(wanted)
        assert session.state == wanted
    else:
        with pytest.raises(ValueError, match=f'{wanted.name} does not follow {state.name}'):
            session.move(wanted)
        assert session.state == state


def test_a_session_is_guarded_until_it_is_logged_in_and_if_it_ends():
    session = Session(ANONYMOUS, None, LoginState.TOKENS)
    assert session.is_guarded
    session.log_in(Principal('User', 'alice'), None)
    assert (session.is_guarded, session.expires_ms, session.principal.name) == (False, NEVER, 'alice')
    limited = Session(ANONYMOUS, None, LoginState.TOKENS)
    limited.log_in(Principal('User', 'alice'), None, 5)
    assert (limited.is_guarded, limited.expires_ms) == (True, 5)
    assert not Session(ANONYMOUS).is_guarded
