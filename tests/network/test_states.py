"""The transitions of a connection are a table, and a transition that is not in it raises an error."""
import itertools

import pytest

from kbroker.network.states import (
    INTAKE_TRANSITIONS,
    OUTPUT_TRANSITIONS,
    Intake,
    Output,
    next_intake,
    next_output,
)


@pytest.mark.parametrize(('states', 'table', 'follow'), [
    (Intake, INTAKE_TRANSITIONS, next_intake), (Output, OUTPUT_TRANSITIONS, next_output)])
def test_only_the_transitions_of_the_table_are_made(states, table, follow):
    assert set(table) == set(states)
    for state, wanted in itertools.product(states, repeat=2):
        if wanted in table[state]:
            assert follow(state, wanted) == wanted
        else:
            with pytest.raises(ValueError, match=f'{wanted.name} does not follow {state.name}'):
                follow(state, wanted)


def test_a_closed_connection_stays_closed():
    assert INTAKE_TRANSITIONS[Intake.CLOSED] == ()


def test_a_connection_that_leaves_can_only_close():
    assert INTAKE_TRANSITIONS[Intake.LEAVING] == (Intake.CLOSED,)
