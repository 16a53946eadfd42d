"""kbroker and Apache Kafka 4.2, 4.3 and 4.4 open one log directory one after the other, stopped or killed.

Covers the promise that a directory can move in both directions. The fixed chains together have every pair of programs.
A run takes a few of them (`--chains=all`, `--chains=3,17`); the soak takes random ones.
"""
import shutil

import pytest
from support.kafka.chain_plans import FIXED_COUNT, fixed_plans, random_plan
from support.kafka.chains import run_chain

pytestmark = pytest.mark.jvm

SOAK_CHAINS = 200


@pytest.mark.timeout(900)
@pytest.mark.parametrize('number', range(FIXED_COUNT), ids='chain-{}'.format)
def test_a_directory_keeps_all_data_through_a_fixed_chain(tmp_path, number):
    run_chain(fixed_plans()[number], tmp_path)


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize('number', range(SOAK_CHAINS), ids='chain-{}'.format)
def test_a_directory_keeps_all_data_through_a_random_chain(tmp_path, number, soak_seed, tally):
    count = run_chain(random_plan((soak_seed - 1) * SOAK_CHAINS + number), tmp_path)
    shutil.rmtree(tmp_path / 'data')
    tally('hand-overs in chains of programs', count)
