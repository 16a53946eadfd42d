"""The Java client of kbroker-verify takes part in a run. If it ends early, the run reports a fault."""
from contextlib import closing

import pytest
from click.testing import CliRunner
from support.kafka.apache_kafka import classpath

from kbroker_tools.commands.verify import main
from kbroker_tools.verify.checker import check
from kbroker_tools.verify.clients import java
from kbroker_tools.verify.history import load
from kbroker_tools.verify.run import Plan, Run


@pytest.mark.jvm
def test_the_java_client_takes_part_in_all_workloads(shared_broker, tmp_path):
    history = tmp_path / 'history.jsonl'
    plan = Plan(shared_broker.address, 2, clients=('java',), java_classpath=classpath())
    assert Run(plan, history).run().problems == []
    recorded = load(history)
    assert [(kind, found.evidence.text) for kind, found in check(recorded).found] == []
    assert check(recorded).is_conclusive
    assert {reader.client for reader in recorded.readers.values()} == {'java', 'kbroker'}    # the final reader


@pytest.fixture
def broken_java(monkeypatch):
    monkeypatch.setattr(java, 'MACHINE', ('sh', '-c', 'echo no such jar >&2; exit 3', 'sh'))


def test_java_that_does_not_start_ends_the_command_with_its_last_words(broken_java, shared_broker, tmp_path):
    done = CliRunner().invoke(main, ['--bootstrap-server', shared_broker.address, '--minutes', '0.01', '--output',
                                     str(tmp_path), '--java-classpath', 'nowhere', '--clients', 'java'])
    assert done.exit_code == 1
    assert 'java ended with code 3: no such jar' in done.output


def test_java_that_prints_something_else_than_its_port_is_a_fault_of_the_run(monkeypatch):
    monkeypatch.setattr(java, 'MACHINE', ('sh', '-c', 'echo using java 17', 'sh'))
    with pytest.raises(java.JavaEnded, match="found 'using java 17' in the first line of java, expected its port"):
        java.Machine('nowhere')


def test_java_that_has_ended_is_no_failure_of_a_client_which_is_tried_again(monkeypatch):
    monkeypatch.setattr(java, 'MACHINE', ('sh', '-c', 'echo 1; echo out of memory >&2', 'sh'))
    with closing(java.Machine('nowhere')) as machine, pytest.raises(java.JavaEnded, match='code 0: out of memory'):
        java.JavaWriter(machine, '127.0.0.1:1', [], None)


def test_the_java_client_needs_its_jars(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ['--bootstrap-server', 'localhost:1', '--clients', 'java'])
    assert done.exit_code == 2 and '--clients java needs --java-classpath' in done.output
