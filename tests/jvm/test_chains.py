"""kbroker and Apache Kafka 4.2, 4.3 and 4.4 open one log directory one after the other, stopped or killed.

Covers the promise that a directory can move in both directions, also with groups of KIP-848, KIP-932 and KIP-1071. The
fixed chains together have every pair of programs. A run takes a few of them (`--chains=all`, `--chains=3,17`); the soak
takes random ones.
"""
import shutil

import pytest
import test_mixed_directory_handover as mixed
from support.kafka.chain_plans import FIXED_COUNT, fixed_plans, random_plan
from support.kafka.chains import run_chain
from support.kafka.shown_metadata import await_shown_metadata

pytestmark = pytest.mark.jvm

SOAK_CHAINS = 200
SETTINGS = {**mixed.SETTINGS, 'group.share.delivery.count.limit': '10', **{
    f'group.{kind}.{name}': '300000' for kind in ('consumer', 'share', 'streams')
    for name in ('max.session.timeout.ms', 'session.timeout.ms')}}
"""Members of groups stay although a program needs long to start, and records may be delivered by each program."""


class Members(mixed.Members):
    """The members of groups of every kind. They list only their own groups."""

    def listed(self):
        return [row for row in super().listed() if row[0] in mixed.GROUPS]


class Groups:
    """A companion of a chain: members of groups of every kind, which go on at each program."""

    settings = SETTINGS

    def __init__(self):
        self._members = Members()
        self._classic = ()
        """The ids of the classic members."""
        self._seen = None

    def begin(self, address):
        self._members.go_to(address)
        self._members.topic_id = mixed.create_topics(self._members.peer)
        await_shown_metadata(address)     # a share group begins where its config says when it meets a partition
        self._classic = mixed.form_groups(self._members)

    def check(self, address):
        self._members.go_to(address)
        assert self._members.seen() == self._seen

    def work(self):
        """Let all members go on. The member of the share group accepts a record and releases two, while it has any."""
        mixed.go_on(self._members, *self._classic)
        accepted, *released = [offset for offset in range(mixed.RECORDS) if offset not in self._members.done][:3]
        self._members.share_on([accepted], released)

    def leave(self):
        self._seen = self._members.seen()
        self._members.leave_broker()


def run(plan, place):
    """Run a chain. Return its number of hand-overs."""
    return run_chain(plan, place, Groups() if plan.has_groups else None)


@pytest.mark.timeout(900)
@pytest.mark.parametrize('number', range(FIXED_COUNT), ids='chain-{}'.format)
def test_a_directory_keeps_all_data_through_a_fixed_chain(tmp_path, number):
    run(fixed_plans()[number], tmp_path)


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize('number', range(SOAK_CHAINS), ids='chain-{}'.format)
def test_a_directory_keeps_all_data_through_a_random_chain(tmp_path, number, soak_seed, tally):
    count = run(random_plan((soak_seed - 1) * SOAK_CHAINS + number), tmp_path)
    shutil.rmtree(tmp_path / 'data')
    tally('hand-overs in chains of programs', count)
