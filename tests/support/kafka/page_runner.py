"""Types the commands of docs/outgrow.md on live processes."""
from __future__ import annotations

import os
import pathlib
import re
import subprocess
import time
from collections.abc import Mapping

from support.brokers.broker_process import Process
from support.kafka.apache_kafka import TOOL_LIMIT_S
from support.kafka.cluster import ClusterNode, ConfiguredBroker
from support.kafka.tool_scripts import ToolScripts
from support.runner.command_runner import install_programs
from support.runner.free_ports import free_port
from support.runner.pages import blocks, text_of

PAGE = 'docs/outgrow.md'
LIMIT_S = 240
"""The time for which a command is repeated until it prints what the page says."""
NODES = (1, 2, 3)
OWN_HOST = {'listeners', 'advertised.listeners', 'ssl.keystore.location'}
"""The settings in which each node has its own host name."""
UNTIL = re.compile(r'repeat until (\d+) lines? says?: (.*)')


def shown_file(first: str) -> str:
    """Return the text of the file on the page whose first setting has this name."""
    file, = (block for block in blocks(PAGE, 'text') if block.startswith(f'{first}='))
    return file


def settings_in(text: str) -> dict[str, str]:
    rows = (line.partition('=') for line in text.splitlines())
    return {name: value for name, _, value in rows}


class OutgrowPage:
    """The page with its three nodes on this machine: their host names, ports and directories are replaced.

    `more` are settings that each file has in addition to those of the page. Node 1 is `kbroker` until the page starts
    Kafka on it.
    """

    def __init__(self, directory: pathlib.Path, release: str, more: Mapping[str, str]):
        self._directory = directory
        self._ports = {(node, port): free_port() for node in NODES for port in (9092, 9093)}
        self.addresses = [self.on_this_machine(f'node{node}:9092') for node in NODES]
        install_programs(directory / 'bin')
        self.tools = ToolScripts(directory / 'bin', release)
        files = [self._settings_file(node, more) for node in NODES]
        self.kbroker = ConfiguredBroker(files[0], self.data(1), self.addresses[0])
        self.nodes = {node: ClusterNode(files[node - 1], self.data(node), self.addresses[node - 1], release)
                      for node in NODES}
        self.processes: list[Process] = [self.kbroker, *self.nodes.values()]

    @property
    def is_served(self) -> bool:
        """Return whether clients find a broker."""
        return any(process.is_running for process in self.processes)

    def close(self) -> None:
        """Kill the processes that still run."""
        for process in self.processes:
            process.kill9()

    def data(self, node: int) -> pathlib.Path:
        return self._directory / f'data-{node}'

    def on_this_machine(self, text: str) -> str:
        text = re.sub(r'\bnode(\d):(909[23])', lambda found: f'127.0.0.1:{self._ports[int(found[1]), int(found[2])]}',
                      text)
        text = re.sub(r'/var/lib/kbroker-(\d)', lambda found: str(self.data(int(found[1]))), text)
        return text.replace('/var/lib/kbroker', str(self.data(1)))

    def _settings_file(self, node: int, more: Mapping[str, str]) -> pathlib.Path:
        """Write the file of a node, as the page describes it, and return its path."""
        rows = {**self._shown_settings(), 'node.id': str(node), 'log.dirs': str(self.data(node))}
        for name in OWN_HOST & rows.keys():
            rows[name] = rows[name].replace('node1', f'node{node}')
        lines = [f'{name}={self.on_this_machine(value)}\n' for name, value in (rows | dict(more)).items()]
        return self._private_file(f'node{node}.properties', ''.join(lines))

    def _private_file(self, name: str, text: str) -> pathlib.Path:
        """Write a file that only its owner can read, and return its path."""
        file = self._directory / name
        file.touch(0o600)
        file.write_text(text)
        return file

    def _shown_settings(self) -> dict[str, str]:
        """Return the settings of node 1 on the page."""
        return settings_in(shown_file('process.roles'))

    def commands(self, section: str) -> list[str]:
        """Return the commands of a section of the page, in their order."""
        text = text_of(PAGE).partition(f'\n## {section}\n')[2].partition('\n## ')[0]
        assert text, f'{PAGE} has no section {section!r}'
        return [line for block in re.findall(r'^```console\n(.*?)^```', text, re.MULTILINE | re.DOTALL)
                for line in re.findall(r'^\$ (.*)$', block, re.MULTILINE)]

    @staticmethod
    def with_survivor(command: str, node: int) -> str:
        """Return a command of the way back for another node that stays than node 1: the two nodes trade places."""
        names = {'1': str(node), str(node): '1'}
        command = command.replace('/var/lib/kbroker', f'/var/lib/kbroker-{node}') if node != 1 else command
        return re.sub(r'(\bnode|\bon node |-id |--id |\$1 == |\\"replicas\\":\[)([123])\b',
                      lambda found: found[1] + names.get(found[2], found[2]), command)

    def type(self, command: str) -> str:
        """Run a command, or start or stop a process as it says, and return its output. Raise AssertionError if it
        fails.
        """
        command, _, comment = command.partition('    # ')
        started = re.fullmatch(r'kafka-server-start.sh node(\d).properties', command)
        machine = re.fullmatch(r'on node (\d)', comment)
        if started:
            self.nodes[int(started[1])].start()
        elif command == 'kafka-server-stop.sh' and machine:
            self.nodes[int(machine[1])].stop()
        elif command == 'systemctl stop kbroker':
            if self.kbroker.is_running:
                self.kbroker.stop()
        elif command == 'systemctl start kbroker':
            self._place_of_kbroker(re.fullmatch(r'kbroker serve --config node(\d).properties', comment))
            self.kbroker.start()
        elif ' remove-controller ' in command:
            self._remove_controller(command)
        else:
            return self._run_until(command, '' if machine else comment)
        return ''

    def _place_of_kbroker(self, named: re.Match[str] | None) -> None:
        """Let kbroker start on the directory of the node whose settings file the page names."""
        assert named is not None
        node = int(named[1])
        self.kbroker = ConfiguredBroker(self._directory / f'node{node}.properties', self.data(node),
                                        self.addresses[node - 1])
        self.processes.append(self.kbroker)

    def _remove_controller(self, command: str) -> None:
        """Remove a controller. As the page says, type the command again if it fails while the active controller changes
        and the node is still a voter.
        """
        removed, describe = re.search(r'--controller-id (\d)', command), re.search(r'\$\((.*?) \| awk', command)
        assert removed and describe, command
        deadline = time.monotonic() + LIMIT_S
        while True:
            try:
                self._run(command)
                return
            except AssertionError as error:
                if 'NotLeaderOrFollowerException' not in str(error) or time.monotonic() > deadline:
                    raise
            rows = [line.split() for line in self._run(describe[1]).splitlines()]
            if not any(row[:1] == [removed[1]] and row[-1] in ('Leader', 'Follower') for row in rows):
                return

    def _run_until(self, command: str, comment: str) -> str:
        until = UNTIL.fullmatch(comment)
        assert until or not comment, f'found the comment {comment!r}'
        deadline = time.monotonic() + LIMIT_S
        while True:
            output = self._run(command)
            if until is None or sum(until[2] in line for line in output.splitlines()) == int(until[1]):
                return output
            assert time.monotonic() < deadline, f'$ {command}\n{output}'

    def _run(self, command: str) -> str:
        environment = os.environ | {'PATH': f'{self._directory / "bin"}:{os.environ["PATH"]}'}
        done = subprocess.run(['sh', '-e', '-c', self.on_this_machine(command)], capture_output=True, text=True,
                              timeout=TOOL_LIMIT_S, check=False, cwd=self._directory, env=environment)
        assert done.returncode == 0, f'$ {command}\n{done.stdout}{done.stderr}'
        return done.stdout


class SecuredPage(OutgrowPage):
    """The page with the listeners of its section about TLS and logins."""

    def __init__(self, directory: pathlib.Path, release: str, more: Mapping[str, str]):
        super().__init__(directory, release, more)
        self._private_file('admin.properties', self.on_this_machine(shown_file('security.protocol')))

    def on_this_machine(self, text: str) -> str:
        text = super().on_this_machine(text).replace('/etc/kafka', str(self._directory))
        return text.replace('DNS:$node', 'IP:127.0.0.1')

    def _shown_settings(self) -> dict[str, str]:
        return super()._shown_settings() | settings_in(shown_file('listeners'))

    def type(self, command: str) -> str:
        """Run a command with the login of the administrator, as the section says."""
        command = re.sub(r'--command-config (node\d.properties)', r'--command-config add-\1', command)
        if '--command-config' not in command:
            command = re.sub(r'--bootstrap-server \S+:9092', r'\g<0> --command-config admin.properties', command)
        return super().type(command)
