"""While the Java members of a group copy records, members of the other group protocol replace them one by one, and are
then replaced in turn.
"""
import subprocess

import pytest
from support.kafka.apache_kafka import java

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

LIMIT_S = 500


def test_a_group_that_is_rolled_to_the_other_protocol_and_back_copies_each_record_once(shared_broker):
    done = subprocess.run(java('kbroker.RollingGroup', shared_broker.address), stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.stdout == 'exactly once\n', done.stderr[-5000:]
