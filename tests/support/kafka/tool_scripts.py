"""The scripts of Kafka's `bin` directory, as far as the documents name them.

A script passes its words to a process of the test, which runs the tool in the virtual machine that it shares among all
tools. A virtual machine for each command would take seconds.
"""
from __future__ import annotations

import json
import pathlib
import socketserver
import sys
import threading
from typing import Self

from support.kafka.apache_kafka import config_command, run_several_tools

TOOLS = 'org.apache.kafka.tools.'


def classes(release: str) -> dict[str, str]:
    """Map the name of each script to the class that it runs."""
    return {
        'kafka-cluster.sh': TOOLS + 'ClusterTool', 'kafka-configs.sh': config_command(release),
        'kafka-features.sh': TOOLS + 'FeatureCommand', 'kafka-leader-election.sh': TOOLS + 'LeaderElectionCommand',
        'kafka-metadata-quorum.sh': TOOLS + 'MetadataQuorumCommand',
        'kafka-reassign-partitions.sh': TOOLS + 'reassign.ReassignPartitionsCommand',
        'kafka-storage.sh': 'kafka.tools.StorageTool', 'kafka-topics.sh': TOOLS + 'TopicCommand',
        'kafka-transactions.sh': TOOLS + 'TransactionsCommand',
    }


SCRIPT = """#!{python} -S
import json, os, socket, sys
words = [os.path.abspath(word) if os.path.exists(word) else word for word in sys.argv[1:]]
with socket.socket(socket.AF_UNIX) as end:
    end.connect({path!r})
    end.sendall(json.dumps([{main!r}, *words]).encode() + b'\\n')
    code, output, errors = json.loads(b''.join(iter(lambda: end.recv(65536), b'')))
sys.stdout.write(output)
sys.stderr.write(errors)
sys.exit(code)
"""


class ToolScripts:
    """A directory with the scripts of a release, which work during a `with` block."""

    def __init__(self, directory: pathlib.Path, release: str):
        path = str(directory / 'tools.socket')
        for name, main in classes(release).items():
            script = directory / name
            script.write_text(SCRIPT.format(python=sys.executable, path=path, main=main))
            script.chmod(0o755)

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                done, = run_several_tools([json.loads(self.rfile.readline())], release)
                self.wfile.write(json.dumps(done).encode())

        self._server = socketserver.UnixStreamServer(path, Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
