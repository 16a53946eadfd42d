"""Starts the installed broker, aborts and commits a transaction in each codec, reads them, and stops the broker.

It shows within a few seconds whether a wheel works with a version of Python. It needs only kbroker itself.
"""
import re
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress

from kbroker.client import Admin, Consumer, Producer

TOPIC = 'smoke'
CODECS = ('none', 'gzip', 'snappy', 'lz4', 'zstd')
LIMIT_S = 60


def main():
    with tempfile.TemporaryDirectory() as directory:
        broker = subprocess.Popen([sys.executable, '-m', 'kbroker', 'serve', '--listen', '127.0.0.1:0', '--data-dir',
                                   directory], stderr=subprocess.PIPE, text=True)
        printed = []
        try:
            use(address(broker, printed))
            broker.send_signal(signal.SIGTERM)
            printed.append(broker.communicate(timeout=LIMIT_S)[1])
        finally:
            broker.kill()
            broker.wait()
    if broker.returncode != 0 or 'Traceback' in ''.join(printed):
        sys.exit(f'found exit status {broker.returncode}, expected 0. The broker printed:\n{"".join(printed)}')
    print(f'Python {sys.version.split()[0]}: a broker started, served transactions in {", ".join(CODECS)}, and stopped')


def address(broker, printed):
    """Return the address of the broker as soon as the broker is ready."""
    for line in broker.stderr:
        printed.append(line)
        found = re.search(r'ready on ([^\s,]+)', line)
        if found:
            return found[1]
    sys.exit(f'the broker does not start:\n{"".join(printed)}')


def use(bootstrap_servers):
    with Admin(bootstrap_servers) as admin:
        admin.create_topics({TOPIC: 1})
    for codec in CODECS:
        with Producer(bootstrap_servers, transactional_id=f'smoke-{codec}', compression_type=codec) as producer:
            with suppress(InterruptedError), producer.transaction():
                producer.send(TOPIC, b'dropped')
                producer.flush()
                raise InterruptedError
            with producer.transaction():
                producer.send(TOPIC, codec.encode() * 100)
    found = []
    with Consumer(bootstrap_servers, group_id='smoke', topics=[TOPIC], isolation_level='read_committed',
                  auto_offset_reset='earliest') as consumer:
        for batch in consumer:
            found += map(bytes, batch.values)
            if len(found) >= len(CODECS):
                break
    expected = [codec.encode() * 100 for codec in CODECS]
    if found != expected:
        sys.exit(f'found the values {found}, expected {expected}')


if __name__ == '__main__':
    main()
