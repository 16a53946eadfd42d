"""franz-go's own tests on the virtual brokers of kbroker-proxy: all of them on three brokers, and its long chains of
groups and transactions while partitions move.
"""
import functools
import json
import os
import random
import re
import shutil
import subprocess
import threading
from collections import Counter
from contextlib import closing

import pytest
from support.brokers.broker_process import PROMPT, PROMPT_SHARES, ROOT, BrokerProcess
from support.proxies.virtual_cluster import VirtualCluster
from support.runner.machine_requirements import JUDGES, fetching

from kbroker_tools.proxy.nodes import GROUP, INTERNAL_TOPICS, TRANSACTION

pytestmark = [pytest.mark.go, pytest.mark.soak, pytest.mark.timeout(900)]

MODULE = 'github.com/twmb/franz-go'
RECORDS = 5000
NOT_OF_BROKERS = {'TestSCRAMAuth', 'TestSCRAMAuthBadCredentials', 'TestIssueProduceBrokerTooOldFailsRecords'}
"""The tests that franz-go skips without a listener for logins, and with a broker that is new."""
PAUSE_S = 0.1


@functools.cache
def suite():
    """Compile the tests of the release that tests/golang/producers uses. Return the program and its directory."""
    with fetching():
        found = subprocess.run(['go', 'list', '-m', '-json', MODULE], cwd=ROOT / 'tests' / 'golang' / 'producers',
                               check=True, stdout=subprocess.PIPE, text=True, timeout=300)
        module = json.loads(found.stdout)
        sources = JUDGES / 'go' / f'franz-go-{module["Version"]}'
        if not sources.exists():
            shutil.copytree(module['Dir'], sources)
            subprocess.run(['chmod', '-R', 'u+w', sources], check=True)
        program = sources / 'kgo.test'
        subprocess.run(['go', 'test', '-c', '-o', program, './pkg/kgo'], cwd=sources, check=True, timeout=600)
    return program, sources / 'pkg' / 'kgo'


def run(nodes, tests='.'):
    """Run tests of franz-go. Return {test: PASS, FAIL or SKIP}."""
    program, directory = suite()
    done = subprocess.run([program, '-test.v', '-test.run', tests, '-test.timeout', '600s'], cwd=directory,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                          check=False, env=os.environ | {'KGO_SEEDS': nodes.address, 'KGO_TEST_RF': '3',
                                                         'KGO_TEST_RECORDS': str(RECORDS)})
    found = {name: outcome for outcome, name in re.findall(r'^--- (PASS|FAIL|SKIP): (\S+)', done.stdout, re.MULTILINE)}
    assert done.returncode == 0, [name for name, outcome in found.items() if outcome == 'FAIL'] or done.stdout[-3000:]
    return found


@pytest.fixture
def nodes(tmp_path):
    with (BrokerProcess(tmp_path / 'data', PROMPT | PROMPT_SHARES) as broker,
          closing(VirtualCluster(broker.address)) as found):
        yield found


def test_all_tests_of_franz_go_pass_on_virtual_brokers(nodes):
    found = run(nodes)
    assert {name for name, outcome in found.items() if outcome != 'PASS'} == NOT_OF_BROKERS
    assert {'TestGroupETL', 'TestTxnEtl', 'TestShareGroupETL'} <= found.keys()


def test_groups_and_transactions_of_franz_go_survive_moves(nodes):
    """Partitions move ten times a second, also those of the transaction coordinators. The coordinators of groups stay:
    franz-go reports to the application that one has moved, and its tests take that for a failure.
    """
    rng, is_over, moved = random.Random(4), threading.Event(), Counter()

    def places():
        return [place for place in nodes.nodes._known if place[0] != INTERNAL_TOPICS[GROUP]]

    def disturb():
        while not is_over.wait(PAUSE_S):
            if known := nodes.do(places):
                topic, partition = rng.choice(known)
                nodes.move(topic, partition, rng.choice((1, 2, 3)))
                moved[topic == INTERNAL_TOPICS[TRANSACTION]] += 1

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        found = run(nodes, '^(TestGroupETL|TestTxnEtl)$')
    finally:
        is_over.set()
        thread.join()
    assert found == {'TestGroupETL': 'PASS', 'TestTxnEtl': 'PASS'}
    assert moved[False] > 10 and moved[True] > 0
