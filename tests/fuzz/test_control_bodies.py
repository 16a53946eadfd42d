"""Random JSON for the control port: each request gets one answer in JSON, and none of them is a fault of the broker."""
import http.client
import io
import json
import logging
import random

import pytest
from fuzz.control_requests import FuzzedPort, request

from kbroker.control.points import ACTIONS, POINTS
from kbroker.control.rules import FIELDS, SELECTORS

SEED = 34
BODIES = 600
REFUSED = {400, 404, 405, 409, 413}
NAMES = [*FIELDS, *SELECTORS, 'stop', 'run', 'set_ms', 'advance_ms', 'ms', '', 'é', 'x' * 300]
VALUES = [*POINTS, *ACTIONS, 'NOT_COORDINATOR', 'NONE', 'Produce', '*', '**a*', '', '\0', '\ud800', 'x' * 5_000, None,
          True, False, 0, 1, -1, 7, 2**31, 2**63, 2**63 - 1, -2**64, 10**400, 0.5, 1e300]
PATHS = [*['POST /rules'] * 6, 'POST /clock', 'POST /rules/1/release', 'DELETE /rules', 'DELETE /rules/1',
         'DELETE /steps']


def value(chance, depth=0):
    """Return a random value of JSON."""
    kind = chance.random()
    if depth < 3 and kind < 0.15:
        return {chance.choice(NAMES): value(chance, depth + 1) for _ in range(chance.randrange(4))}
    if depth < 3 and kind < 0.25:
        return [value(chance, depth + 1) for _ in range(chance.randrange(4))]
    return chance.choice(VALUES)


def body(chance):
    """Return a body that is often nearly right."""
    if chance.random() < 0.2:
        return value(chance)
    point = chance.choice([*POINTS.values()])
    found = {'point': point.name, 'action': chance.choice(point.actions),
             'select': {chance.choice([*SELECTORS]): value(chance) for _ in range(chance.randrange(3))}}
    if found['action'] == 'error':
        found['error'] = 'NOT_COORDINATOR'
    if found['action'] == 'delay':
        found['delay_ms'] = 5
    for _ in range(chance.randrange(2)):
        found[chance.choice(NAMES)] = value(chance)
    return found


class Received:
    """The socket from which http.client reads an answer."""

    def __init__(self, data):
        self._data = data

    def makefile(self, *_):
        return io.BytesIO(self._data)


def read(answer):
    """Return (status, JSON value) of an answer."""
    response = http.client.HTTPResponse(Received(answer))
    response.begin()
    return response.status, json.loads(response.read())


@pytest.mark.parametrize('bodies', [BODIES, pytest.param(1_000 * BODIES, marks=pytest.mark.soak)])
def test_random_json_is_a_rule_or_is_refused(tmp_path, caplog, bodies):
    caplog.set_level(logging.ERROR)
    port, chance = FuzzedPort(tmp_path), random.Random(SEED)
    statuses = set()
    for _ in range(bodies):
        sent = json.dumps(body(chance)).encode()
        answer = port.run(request(chance.choice(PATHS), sent))
        status, found = read(answer)
        statuses.add(status)
        assert status in REFUSED | {200, 201}, (sent, answer)
        assert ([*found] == ['error']) == (status in REFUSED), (sent, answer)
    assert {200, 201, 400} <= statuses
    assert caplog.records == []
