"""The page about the control port shows its requests, its points and its fields as they are, and its examples run."""
import json
import re
import subprocess

from support.brokers.control_port_broker import ControlPortBroker
from support.runner.pages import rows_of_table, sessions, text_of

from kbroker.control.points import ACTIONS, POINTS
from kbroker.control.routes import CLOCK_FIELDS, MOST_RULE_BYTES, MOST_WAIT_MS, Controlled, routes_of
from kbroker.control.rules import MOST_AT_ONCE, MOST_RECORD_BYTES, MOST_RULES, SELECTORS
from kbroker.control.server import MOST_POLLS, PURPOSE
from kbroker.http.connection import MOST_BODY_BYTES

PAGE = 'docs/control.md'
WORKS = dict.fromkeys(('/reset', '/snapshot'))


def quoted(text):
    return re.findall(r'`(.+?)`', text)


def test_the_examples_of_the_page_do_what_it_says(tmp_path):
    lines = sessions(PAGE)
    assert len(lines) > 10
    with ControlPortBroker(tmp_path / 'data') as broker:
        for line, expected in lines:
            command = line.replace('http://127.0.0.1:9090', f'http://{broker.control}')
            done = subprocess.run(['sh', '-e', '-c', command], capture_output=True, text=True, timeout=120, check=False,
                                  cwd=tmp_path)
            assert done.returncode == 0, (line, done.stderr)
            assert 'error' not in json.loads(done.stdout) or '"action": "error"' in line, (line, done.stdout)
            assert expected in ('', done.stdout), line


def test_the_page_lists_each_request():
    routes = {f'{method} {route.path}' for route in routes_of(Controlled(None, None, None, None, WORKS))
              for method in route.methods if method != 'HEAD'}
    assert {quoted(request)[0] for request, _ in rows_of_table(PAGE, 'request')} == routes


def test_the_page_lists_each_point_with_its_actions():
    assert {quoted(name)[0]: (meaning, tuple(quoted(actions))) for name, meaning, actions in
            rows_of_table(PAGE, 'point')} == {
        point.name: (point.meaning, point.actions) for point in POINTS.values()}
    assert {quoted(name)[0]: meaning for name, meaning in rows_of_table(PAGE, 'action')} == ACTIONS


def test_the_page_lists_each_field():
    fields = rows_of_table(PAGE, 'field of the selector')
    assert {name for names, _ in fields for name in quoted(names)} == set(SELECTORS)
    assert [[*json.loads(quoted(field)[0])] for field, _ in rows_of_table(PAGE, 'field')] == [
        [name] for name in ('stop', 'run', 'advance_ms', 'set_ms')]
    assert set(CLOCK_FIELDS) == {'stop', 'run', 'advance_ms', 'set_ms'}
    facts = {fact for point in POINTS.values() for fact in point.describe()['facts']}
    assert facts - {'point'} <= set(quoted(text_of(PAGE)))


def test_the_page_has_the_bounds():
    text = text_of(PAGE)
    for bound in (f'{MOST_WAIT_MS:,} ms', f'At most {MOST_POLLS} requests', f'at most {MOST_AT_ONCE:,}',
                  f'{MOST_RECORD_BYTES >> 20} MiB'):
        assert bound in text
    assert [row[1] for row in rows_of_table(PAGE, 'what')] == [
        f'{PURPOSE.most_connections}', f'{MOST_POLLS}', f'{MOST_BODY_BYTES >> 10} KiB', f'{MOST_RULE_BYTES >> 10} KiB',
        f'{MOST_RULES:,}', f'{MOST_RECORD_BYTES >> 20} MiB', f'{MOST_AT_ONCE:,}']
