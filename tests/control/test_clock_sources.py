"""Every module of the broker takes the time from its clock, except those that are named here with their reason."""
import pathlib
import re

BROKER = pathlib.Path(__file__).parents[2] / 'kbroker'
READS_THE_MACHINE = re.compile(
    r'\btime\.(?:time|monotonic|perf_counter|process_time|localtime|gmtime|strftime)(?:_ns)?\(|\bclock_gettime\(|'
    r'\bgettimeofday\(|\bnow_us\(|\bread_us\(|\bread_ms\(|\bdatetime\.(?:now|utcnow|today)\(|\bdate\.today\(|'
    r'(?<!Controlled)(?<!Manual)\bClock\(\)|\bst_mtime(?:_ns)?\b|\btime\.sleep\(')

BUDGET = 'it bounds how long a turn holds the loop, or measures how long work took'
FILES = 'the kernel sets the times of change of files'
COMMAND = 'it runs in a command, without a control port'
PEER = 'it judges how fast another process or the network is'
FORMATS = 'it only formats a time that it is given'
MACHINE_TIME = {
    'apis/serving/dispatch.pyx': BUDGET,
    'apis/serving/listener_logins.py': COMMAND,
    'apis/serving/request.pyx': BUDGET,
    'base/clock.pxd': BUDGET,
    'base/clock.pyx': 'it is the clock',
    'base/long_work.pyx': BUDGET,
    'base/turn_watch.pxd': BUDGET,
    'base/turn_watch.pyx': BUDGET,
    'control/clock.py': 'it reports the progress of an advance to people',
    'control/process.py': PEER,
    'daemon/broker.py': 'it creates the clock, and the timers of the machine beside it',
    'daemon/container.py': PEER,
    'daemon/hand_over.py': COMMAND,
    'daemon/logs.py': 'the lines of the log are compared with those of other programs',
    'daemon/main.py': COMMAND,
    'daemon/monitoring.py': 'it answers during a start, before the broker has a loop',
    'daemon/stopping.py': PEER,
    'group/offsets/table.pyx': 'a command reads offsets with it, which limits no memory',
    'http/connection.py': FORMATS,
    'http/standalone.py': COMMAND,
    'log/fs/file_system.py': FILES,
    'metadata/offline.py': COMMAND,
    'metrics/loop.py': BUDGET,
    'network/connection.pyx': BUDGET,
    'network/reactor.pyx': BUDGET,
    'network/server.py': BUDGET,
    'network/sync_threads.pyx': BUDGET,
    'network/tls.pyx': BUDGET,
    'network/tls_contexts.py': 'the broker passes its clock; only a command uses that of the machine, and files have '
                               'the times of the kernel',
    'page/render.py': FORMATS,
    'security/audit.py': FORMATS,
    'security/key_source.py': FILES,
    'security/web.py': PEER,
    'topics/partition.pyx': BUDGET,
}


def test_every_module_follows_the_clock_or_is_named_with_its_reason():
    sources = [path for suffix in ('py', 'pyx', 'pxd') for path in BROKER.rglob(f'*.{suffix}')
               if path.relative_to(BROKER).parts[0] not in {'client', 'testing'}]
    found = {str(path.relative_to(BROKER)) for path in sources if READS_THE_MACHINE.search(path.read_text())}
    assert found == {name for name in MACHINE_TIME if (BROKER / name).exists()}
