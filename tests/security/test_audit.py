"""The audit: one JSON object per line, denials with their reason, and a file that never blocks the loop."""
import errno
import json
import logging
import os
import signal
import threading

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from kbroker.security import audit_file
from kbroker.security.audit import Audit, AuditLog
from kbroker.security.audit_file import AuditFile, open_audit


class Lines:
    """A sink of the audit that collects the lines in a list."""

    waiting_bytes = 0

    def __init__(self):
        self.lines = []

    def put(self, line):
        assert line.isprintable()
        self.lines.append(json.loads(line))

    def reopen(self):
        raise AssertionError('not expected')

    def close(self):
        self.lines.append('closed')


@pytest.fixture
def sink():
    return Lines()


@pytest.fixture
def audit(sink, clock):
    audit = AuditLog(sink, clock)
    sink.lines.clear()
    return audit


def test_a_line_has_its_time_and_the_fields_that_are_known(audit, sink):
    audit.write('login', outcome='ok', principal='User:alice', host='10.0.0.1', client_id=None, attempts=3)
    assert sink.lines == [{'time': '2023-11-14T22:13:20.000Z', 'event': 'login', 'outcome': 'ok',
                           'principal': 'User:alice', 'host': '10.0.0.1', 'attempts': 3}]


def test_the_name_of_a_client_is_cut_and_cannot_end_the_line(audit, sink):
    audit.write('login', principal='User:' + '\n\u202e' * 10_000)
    assert len(sink.lines[0]['principal']) < 5000


def test_a_denial_says_what_was_asked_and_which_rule_decided(audit, sink):
    audit.denied({'result': 'denied', 'principal': 'User:bob', 'host': '10.0.0.1', 'operation': 'WRITE',
                  'resource': 'TOPIC:LITERAL:orders', 'request': 'PRODUCE', 'rule': 'DefaultDeny', 'repeated': 7})
    assert sink.lines == [{
        'time': '2023-11-14T22:13:20.000Z', 'event': 'denied', 'outcome': 'denied', 'count': 7,
        'principal': 'User:bob', 'host': '10.0.0.1', 'api': 'PRODUCE', 'operation': 'WRITE',
        'resource': 'TOPIC:LITERAL:orders', 'rule': 'DefaultDeny'}]


def test_the_stop_is_written_at_the_end(audit, sink):
    audit.close()
    assert [line if isinstance(line, str) else line['event'] for line in sink.lines] == ['stopped', 'closed']


def test_an_audit_that_is_off_does_nothing(clock):
    audit = open_audit('', clock)
    assert type(audit) is Audit
    assert not audit.is_on
    audit.write('login')
    audit.reopen()
    audit.close()


def test_the_audit_may_go_to_the_log_of_the_broker(clock, caplog):
    with caplog.at_level(logging.INFO, 'kbroker.audit'):
        audit = open_audit('log', clock)
        audit.write('login', outcome='ok')
        audit.reopen()
        audit.close()
    assert [json.loads(message)['event'] for message in caplog.messages] == ['started', 'login', 'stopped']


def events(path):
    return [json.loads(line)['event'] for line in path.read_text().splitlines()]


def test_the_file_is_for_its_owner_only_and_is_appended_to(tmp_path, clock):
    path = tmp_path / 'audit.log'
    for _ in range(2):
        audit = open_audit(str(path), clock)
        audit.write('login', outcome='ok')
        audit.close()
    assert path.stat().st_mode & 0o777 == 0o600
    assert events(path) == ['started', 'login', 'stopped'] * 2


def test_a_line_that_a_killed_broker_left_torn_is_ended(tmp_path):
    path = tmp_path / 'audit.log'
    path.write_bytes(b'{"event": "to')
    file = AuditFile(str(path))
    file.put('{"event": "next"}')
    file.close()
    assert path.read_text().split('\n') == ['{"event": "to', '{"event": "next"}', '']


def test_a_file_that_cannot_be_opened_is_reported(tmp_path, clock):
    with pytest.raises(OSError, match='No such file'):
        open_audit(str(tmp_path / 'missing' / 'audit.log'), clock)


def test_reopening_goes_on_in_a_new_file_and_loses_no_line(tmp_path):
    path, renamed = tmp_path / 'audit.log', tmp_path / 'audit.log.1'
    file = AuditFile(str(path))
    for number in range(100):
        file.put(json.dumps({'event': number}))
    path.rename(renamed)
    file.reopen()
    for number in range(100, 200):
        file.put(json.dumps({'event': number}))
    file.close()
    assert events(renamed) + events(path) == list(range(200))
    assert events(path)


class FullDisk:
    """A stand-in for os.write that writes `room` bytes, and then fails until `free` is set."""

    def __init__(self, room=0):
        self.room = room
        self.failed = threading.Event()
        self.free = threading.Event()

    def __call__(self, fd, data):
        if self.free.is_set():
            return os.write(fd, data)
        if self.room:
            taken = os.write(fd, data[:self.room])
            self.room -= taken
            return taken
        self.failed.set()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize('room', [0, 7, 30])
def test_lines_wait_for_a_full_disk_in_their_order(tmp_path, caplog, room):
    path = tmp_path / 'audit.log'
    disk = FullDisk(room)
    file = AuditFile(str(path), write=disk, retry_s=0.01)
    for number in range(10):
        file.put(json.dumps({'event': number}))
    assert disk.failed.wait(120)
    assert file.waiting_bytes > 0
    disk.free.set()
    file.close()
    assert events(path) == list(range(10))
    assert file.waiting_bytes == 0
    assert [record.levelname for record in caplog.records][:1] == ['ERROR']
    assert 'No space left on device' in caplog.messages[0]


def test_lines_that_find_no_room_are_counted_and_their_number_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(audit_file, 'QUEUE_BYTES', 1000)
    path = tmp_path / 'audit.log'
    disk = FullDisk()
    file = AuditFile(str(path), write=disk, retry_s=0.01)
    for number in range(1000):
        file.put(json.dumps({'event': number}))
    assert file.waiting_bytes <= 1000
    disk.free.set()
    file.close()
    found = [json.loads(line) for line in path.read_text().splitlines()]
    (lost,) = [line for line in found if line['event'] == 'lost']
    kept = [line['event'] for line in found if line['event'] != 'lost']
    assert kept == list(range(len(kept)))
    assert lost['count'] == 1000 - len(kept)


def test_a_disk_that_stays_full_does_not_keep_the_broker_from_stopping(tmp_path, caplog):
    file = AuditFile(str(tmp_path / 'audit.log'), write=FullDisk(), retry_s=0.01)
    for number in range(5):
        file.put(json.dumps({'event': number}))
    file.close()
    assert any('lines of the audit are lost' in message for message in caplog.messages)


def test_a_running_broker_audits_changes_and_goes_on_in_a_new_file_on_sighup(start_broker, tmp_path):
    path, renamed = tmp_path / 'audit.log', tmp_path / 'audit.log.1'
    broker = start_broker({'kbroker.audit.log': str(path)})
    admin = AdminClient({'bootstrap.servers': broker.address, 'client.id': 'auditor'})
    admin.create_topics([NewTopic('before', 1)])['before'].result()
    while events(path) != ['started', 'change']:    # a thread of the broker writes the lines
        admin.list_topics(timeout=180)
    path.rename(renamed)
    os.kill(broker.pid, signal.SIGHUP)
    while not path.exists():
        admin.list_topics(timeout=180)
    admin.delete_topics(['before'])['before'].result()
    broker.stop()
    lines = [json.loads(line) for line in (renamed.read_text() + path.read_text()).splitlines()]
    assert [line['event'] for line in lines] == ['started', 'change', 'change', 'stopped']
    assert [(line['principal'], line['client_id'], line['api'], line['resource']) for line in lines[1:3]] == [
        ('User:ANONYMOUS', 'auditor', 'CREATE_TOPICS', 'topic:before'),
        ('User:ANONYMOUS', 'auditor', 'DELETE_TOPICS', 'topic:before')]
    assert events(path) == ['change', 'stopped']
