"""kbroker-features: what it prints, what it asks before, and what a broker refuses.

Covers KIP-584 and KIP-1022.
"""
import json

import pytest
from click.testing import CliRunner
from support.brokers.broker_process import BrokerProcess
from support.brokers.in_process_broker import InProcessBroker
from support.runner.command_runner import run_in_process

from kbroker.metadata.features import RELEASES
from kbroker_tools.commands.features import METADATA_LEVELS, main

COST = 'Apache Kafka before 4.4 cannot open the directory, and the level'
FINAL = f'metadata.version 33: {COST} cannot be lowered again'
LOWERED = f'share.version 2: {COST} can be lowered again'


@pytest.fixture(scope='module')
def broker(tmp_path_factory):
    with BrokerProcess(tmp_path_factory.mktemp('features') / 'data') as broker:
        yield broker


def run(broker, *arguments, stdin=''):
    return CliRunner().invoke(main, ['--bootstrap-server', broker.address, *arguments], input=stdin)


def levels(broker):
    found = map(json.loads, run(broker, 'describe', '--json').output.splitlines())
    return {row['feature']: row['finalized_version_level'] for row in found if row['feature'] != 'kraft.version'}


@pytest.mark.parametrize(('arguments', 'words'), [
    (['describe', '--data-dir', '/', '--bootstrap-server', 'a:1'], 'give one of --bootstrap-server'),
    (['upgrade'], 'give one of --release-version and --feature'),
    (['upgrade', '--release-version', '4.3', '--feature', 'a=1'], 'give one of --release-version and --feature'),
    (['upgrade', '--release-version', '9.9'], "'9.9' is not one of '4.3', '4.4'"),
    (['upgrade', '--feature', 'share.version'], "found 'share.version', expected NAME=LEVEL"),
    (['upgrade', '--feature', 'a=99999999'], 'expected NAME=LEVEL with a level from 0 to 99999'),
    (['downgrade', '--feature', 'a=1', '--feature', 'a=0'], 'found a twice'),
    (['disable'], "Missing option '--feature'")])
def test_wrong_usage_is_reported_with_exit_code_2(arguments, words):
    done = run_in_process('features', *arguments)
    assert done.returncode == 2
    assert words in ' '.join(done.stderr.split())


def test_levels_go_down_and_up_and_a_dry_run_changes_none(broker):
    for arguments, printed, level in (
            (['downgrade', '--feature', 'share.version=0', '--dry-run'], 'can be downgraded to 0', 1),
            (['downgrade', '--feature', 'share.version=0'], 'was downgraded to 0', None),
            (['upgrade', '--feature', 'share.version=1'], 'was upgraded to 1', 1),
            (['disable', '--feature', 'share.version', '--dry-run'], 'can be disabled', 1),
            (['disable', '--feature', 'share.version', '--unsafe'], 'was disabled', None),
            (['upgrade', '--feature', 'share.version=1'], 'was upgraded to 1', 1)):
        done = run(broker, *arguments)
        assert (done.exit_code, done.output) == (0, f'share.version {printed}.\n')
        assert levels(broker)['share.version'] == (level or 0)


def test_a_refusal_names_each_feature_and_the_reason(broker):
    done = run(broker, 'upgrade', '--feature', 'share.version=9', '--feature', 'group.version=1')
    reason = 'share.version cannot have the level 9: the broker supports 0 to 2'
    assert done.exit_code == 1
    assert done.stdout.splitlines() == [f'Could not upgrade group.version to 1. {reason}',
                                        f'Could not upgrade share.version to 9. {reason}']
    assert done.stderr.endswith(': 2 out of 2 operation(s) failed.\n')


@pytest.mark.parametrize('answer', ['', 'n\n'])
def test_nothing_changes_without_a_yes(broker, answer):
    before = levels(broker)
    done = run(broker, 'upgrade', '--release-version', '4.4', stdin=answer)
    assert done.exit_code == 1
    assert done.stderr.splitlines()[:2] == [FINAL, LOWERED]
    assert 'Change the levels?' in done.stderr and 'no level was changed: answer y, or give --yes' in done.stderr
    assert levels(broker) == before == RELEASES['4.3']


def test_an_upgrade_to_kafka_4_4_is_announced_and_only_share_version_has_a_way_back(tmp_path):
    with BrokerProcess(tmp_path / 'data') as broker:
        tried = run(broker, 'upgrade', '--release-version', '4.4', '--dry-run')
        assert (tried.exit_code, tried.stderr.splitlines()) == (0, [FINAL, LOWERED])
        assert 'metadata.version can be upgraded to 33.' in tried.stdout.splitlines()
        assert levels(broker) == RELEASES['4.3']
        assert not any(COST in line for line in broker.lines)
        done = run(broker, 'upgrade', '--release-version', '4.4', stdin='y\n')
        assert done.exit_code == 0
        assert done.stdout.splitlines() == [f'{name} was upgraded to {level}.'
                                            for name, level in sorted(RELEASES['4.4'].items())]
        assert levels(broker) == RELEASES['4.4']
        assert [line for line in broker.lines if FINAL in line] and [line for line in broker.lines if LOWERED in line]
        refused = run(broker, 'downgrade', '--release-version', '4.3')
        assert refused.exit_code == 1 and 'records of level 33 may be in the log' in refused.stdout
        assert run(broker, 'downgrade', '--feature', 'share.version=1').exit_code == 0
        again = run(broker, 'upgrade', '--feature', 'share.version=2', '--yes')
        assert (again.exit_code, again.stderr) == (0, f'{LOWERED}\n')
        assert run(broker, 'upgrade', '--release-version', '4.4').exit_code == 0, 'no question: nothing is raised'


def test_a_directory_is_described_as_its_broker_was(broker, tmp_path):
    with InProcessBroker(tmp_path / 'data'):
        pass
    live = run(broker, 'describe').output
    offline = run_in_process('features', '--data-dir', tmp_path / 'data', 'describe').stdout
    assert [line.split()[:8] for line in offline.splitlines()] == [line.split()[:8] for line in live.splitlines()]
    assert f'{"metadata.version":<42}SupportedMinVersion: 3.3-IV3          SupportedMaxVersion: 4.4-IV2' in offline
    refused = run_in_process('features', '--data-dir', tmp_path / 'data', 'upgrade', '--feature', 'share.version=1')
    assert (refused.returncode, '--bootstrap-server, not --data-dir' in refused.stderr) == (2, True)
    (tmp_path / 'empty').mkdir()
    refused = run_in_process('features', '--data-dir', tmp_path / 'empty', 'describe')
    assert (refused.returncode, 'found no' in refused.stderr) == (1, True)


def test_each_level_of_metadata_version_has_a_name():
    assert list(METADATA_LEVELS) == list(range(7, 35))
    assert (METADATA_LEVELS[7], METADATA_LEVELS[30], METADATA_LEVELS[33]) == ('3.3-IV3', '4.3-IV0', '4.4-IV2')
