"""Transactional producers in separate processes. A process reads a command from each line of its input, and answers it
with one line.

The commands are `begin`, `send TOPIC PARTITION VALUE`, `flush`, `offsets GROUP TOPIC PARTITION OFFSET`, `commit` and
`abort`. Each answer is `ok`, or `failed` with the reason. The first line of the output says that the producer is ready.
The process ends when its input ends.
"""
import subprocess


class LineProducer:
    """A producer in a process that the given command starts. It has the methods that the tests of transactional
    behaviour call.
    """

    def __init__(self, command):
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        try:
            self._await_ok()
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def _await_ok(self):
        answer = self._process.stdout.readline().strip()
        if answer != 'ok':
            raise AssertionError(answer or 'the producer has ended')

    def _ask(self, *words):
        print(*words, file=self._process.stdin, flush=True)
        self._await_ok()

    def begin(self):
        self._ask('begin')

    def send(self, topic, partition, value):
        self._ask('send', topic, partition, value)

    def flush(self):
        self._ask('flush')

    def send_offsets(self, group, topic, offset):
        self._ask('offsets', group, topic, 0, offset)

    def commit(self):
        self._ask('commit')

    def abort(self):
        self._ask('abort')
