"""The same users send the same requests to kbroker and to Apache Kafka 4.3 with its StandardAuthorizer.

`support/kafka/authorization_cases.py` has the requests and the rights. Each user logs in by SASL/PLAIN. The answers
agree, field by field. A difference means that kbroker is wrong, unless DIFFERENCES has a reason for it.

Covers KIP-11 and KIP-290.
"""
from __future__ import annotations

import contextlib
import re
import time

import pytest
from raw_peer import UNPREPARED, RawPeer, comparable, differences, error_codes
from support.kafka.authorization_cases import (
    ADMIN,
    CASES,
    SUPER_USER,
    World,
    acls_of,
    prepare,
    runs_of,
    users_of,
)
from support.kafka.authorized_kafka import AuthorizedBroker, AuthorizedKafka, password_of
from support.kafka.beside_kafka import running

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

SETTINGS = {
    'offsets.topic.num.partitions': '1',
    'transaction.state.log.num.partitions': '1',
    'group.initial.rebalance.delay.ms': '0',
    'log.retention.ms': '-1',
    'share.coordinator.state.topic.num.partitions': '1',
    'share.coordinator.state.topic.replication.factor': '1',
    'share.coordinator.state.topic.min.isr': '1',
    # Sessions of members do not end during the test. Heartbeats are as frequent as kbroker requests them while a
    # group's target is new. With a longer interval, its answers would differ from Kafka's.
    **{f'group.{kind}.{name}': value for kind in ('consumer', 'share', 'streams') for name, value in (
        ('max.session.timeout.ms', '600000'), ('session.timeout.ms', '600000'),
        ('min.heartbeat.interval.ms', '500'), ('heartbeat.interval.ms', '500'))},
}
ACLS_AT_ONCE = 1000
PREPARATION_LIMIT_S = 120
DIFFERENCES: dict[tuple[str, str], str] = {
    (
        'alter-share-offsets',
        r"topic_id: Kafka 'topic_id",
    ): 'without the right to read a topic, its id is not answered',
    (
        'fetch-follower',
        r'current_leader\.leader_(id|epoch)',
    ): 'no follower exists: it is refused, without the leader in the answer',
    (
        'streams-creates',
        r"status_detail: Kafka '(Internal topics are missing: )(\S+), (\S+); (.*)', kbroker '\1\3, \2; \4'",
    ): 'Kafka names missing topics in the order of a hash table',
    (
        'metadata-creates',
        r"Kafka 'UNKNOWN_TOPIC_OR_PARTITION', kbroker 'NONE'|partitions: Kafka \[\]|topic_id: Kafka b'",
    ): 'a topic is created before the answer, so that the answer says why it cannot be',
}
"""Maps (case, pattern in the text of a difference) to the reason for accepting the difference."""
DIFFERENCES_AT_TIMES = {
    (
        'share-fetch',
        r"responses: Kafka \[\], kbroker \[.*'UNKNOWN_SERVER_ERROR'",
    ): 'a slow Kafka answers before it knows that the share partition has no state',
}
"""The accepted differences that do not occur in every run, because they depend on the speed of Kafka."""


class Side:
    """One broker, and {run: answer}."""

    def __init__(self, address):
        self.address = address
        self.peers = {}
        self.answers = {}

    def peer(self, user):
        if user not in self.peers:
            self.peers[user] = RawPeer(self.address, '', (user, password_of(user)))
        return self.peers[user]

    def play(self, runs):
        admin = self.peer(ADMIN)
        ids = prepare(lambda *request, **fields: self.settled(admin, *request, **fields), runs)
        self.create_acls(admin, acls_of(runs))
        for run in runs:
            peer = self.peer(run.case.user(run.scenario))
            self.answers[run] = peer.ask(run.case.api, run.version, **run.case.fields(run.version, World(ids, run.tag)))
            for topic in getattr(self.answers[run], 'topics', []):
                if run.case.name == 'create-topics-really' and not topic.error_code:
                    self.settled(admin, 'Metadata', topics=[dict(name=topic.name)], allow_auto_topic_creation=False)

    @staticmethod
    def settled(admin, *request, **fields):
        """Repeat a request until its answer has no temporary error. On a busy machine, Kafka takes longer than RawPeer
        waits.
        """
        deadline = time.monotonic() + PREPARATION_LIMIT_S
        while error_codes(answer := admin.prepare(*request, **fields)) & UNPREPARED:
            assert time.monotonic() < deadline, answer
        return answer

    def create_acls(self, admin, acls):
        """Create the ACLs, and wait until the broker knows them."""
        for first in range(0, len(acls), ACLS_AT_ONCE):
            found = admin.prepare('CreateAcls', creations=acls[first:first + ACLS_AT_ONCE])
            assert {result.error_code for result in found.results} == {0}
        deadline = time.monotonic() + PREPARATION_LIMIT_S
        while self.count_acls(admin) < len(acls):
            assert time.monotonic() < deadline

    @staticmethod
    def count_acls(admin):
        any_of = dict(resource_type_filter=1, resource_name_filter=None, pattern_type_filter=1, principal_filter=None,
                      host_filter=None, operation=1, permission_type=1)
        return sum(len(resource.acls) for resource in admin.ask('DescribeAcls', **any_of).resources)

    def close(self):
        for peer in self.peers.values():
            peer.close()


RUNS = [run for case in CASES if case.api != 'ApiVersions' for run in runs_of(case, every_version=False)]
"""The runs of all cases except ApiVersions, which needs no right. `test_differential` compares the answers to
ApiVersions.
"""


@pytest.fixture(scope='module')
def sides(tmp_path_factory):
    """Kafka and kbroker, both with the answers to RUNS."""
    yield from play_on_both(tmp_path_factory.mktemp('authorization'), RUNS)


def play_on_both(directory, runs):
    users = [ADMIN, SUPER_USER, *users_of(runs)]
    super_users = [ADMIN, SUPER_USER]
    kafka = AuthorizedKafka(directory / 'kafka', SETTINGS, users, super_users)
    ours = AuthorizedBroker(directory / 'kbroker', SETTINGS, users, super_users)
    with running(kafka, ours) as brokers, contextlib.ExitStack() as stack:
        sides = [stack.enter_context(contextlib.closing(Side(broker.address))) for broker in brokers]
        for side in sides:
            side.play(runs)
        yield sides


def unexplained(sides, runs):
    """Return the differences between the answers to these runs that DIFFERENCES does not explain."""
    kafka, ours = sides
    return [
        line for run in runs for line in differences_of(run, kafka.answers[run], ours.answers[run])
        if not any(name == run.case.name and re.search(pattern, line)
                   for name, pattern in [*DIFFERENCES, *DIFFERENCES_AT_TIMES])]


def differences_of(run, kafka, ours):
    if isinstance(kafka, str) or isinstance(ours, str):
        return [] if kafka == ours else [f'{run}: Kafka {kafka}, kbroker {ours}']
    return [f'{run}: {line}' for line in differences(comparable(kafka), comparable(ours))]


@pytest.mark.parametrize('case', [case for case in CASES if case.api != 'ApiVersions'], ids=lambda case: case.name)
def test_kbroker_checks_what_kafka_checks(sides, case):
    assert unexplained(sides, [run for run in RUNS if run.case is case]) == []


def test_each_difference_is_found(sides):
    lines = [line for run in RUNS for line in differences_of(run, *(side.answers[run] for side in sides))]
    assert [key for key in DIFFERENCES if not any(re.search(key[1], line) for line in lines)] == []


@pytest.mark.soak
def test_kbroker_checks_what_kafka_checks_in_each_version(tmp_path):
    runs = [run for case in CASES if case.api != 'ApiVersions' for run in runs_of(case, every_version=True)]
    for sides in play_on_both(tmp_path, runs):
        assert unexplained(sides, runs) == []
