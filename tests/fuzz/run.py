"""Fuzz the targets, as many at a time as there are cores: `python run.py SECONDS [TARGET ...]`. Run by `make fuzz`."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

HERE = pathlib.Path(__file__).parent
BUILD = HERE.parent.parent / 'build' / 'fuzz'
TARGETS = ('requests', 'responses', 'batches', 'payloads', 'logins', 'names', 'rows', 'files', 'settings', 'patterns')
SHOWN_LINES = 40
NOISE = re.compile(r'#\d+\t|INFO: |WARNING: |You can likely resolve')
"""The progress of libFuzzer. What a sanitizer found comes behind it, with a long stack of Python itself."""


def environment() -> Mapping[str, str]:
    """Return the variables of a run.

    The table of coverage comes before the sanitizer: see coverage_map.c. The sanitizer looks for the functions that
    throw exceptions of C++ when it starts, and atheris throws them: so their library comes next.
    """
    compiler = os.environ.get('CC', 'cc').split()[-1]
    libraries = [subprocess.run([compiler, f'-print-file-name={name}'], check=True, capture_output=True,
                                text=True).stdout.strip() for name in ('libasan.so', 'libstdc++.so')]
    return {**os.environ, 'LD_PRELOAD': ' '.join((str(BUILD / 'coverage_map.so'), *libraries)),
            'ASAN_OPTIONS': 'verify_asan_link_order=0:detect_leaks=0:allocator_may_return_null=1',
            'UBSAN_OPTIONS': 'print_stacktrace=1', 'PYTHONMALLOC': 'malloc',
            'PYTHONPATH': os.pathsep.join(map(str, (BUILD / 'lib', HERE.parent, BUILD / 'packages')))}


def fuzz(target: str, seconds: str, variables: Mapping[str, str]) -> bool:
    """Run one target. Print a line, and the end of its output if it found a fault. Return whether it found none."""
    begin = time.monotonic()
    command = [sys.executable, '-P', str(HERE / 'guided.py'), target, seconds, str(BUILD / 'corpus' / target)]
    done = subprocess.run(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors='replace')
    log = BUILD / f'{target}.log'
    log.write_text(done.stdout)
    runs = re.search(r'number_of_executed_units: (\d+)', done.stdout)
    found = re.findall(r'ft: (\d+) corp: (\d+)', done.stdout)
    features, inputs = found[-1] if found else ('no', 'no')
    print(f'{target}: {"clean" if done.returncode == 0 else "A FAULT"}, {runs[1] if runs else "?"} runs in '
          f'{time.monotonic() - begin:.0f} s, {features} features, {inputs} inputs', flush=True)
    if done.returncode:
        lines = [line for line in done.stdout.splitlines() if not NOISE.match(line)]
        print(*lines[:SHOWN_LINES], f'All of it is in {log}.', sep='\n', flush=True)
    return done.returncode == 0


def main(seconds: str, *targets: str) -> None:
    # libFuzzer ends its process at once, so the directory of a target stays.
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        variables = {**environment(), 'TMPDIR': temporary}
        if not all(list(pool.map(lambda target: fuzz(target, seconds, variables), targets or TARGETS))):
            sys.exit(1)


if __name__ == '__main__':
    main(*sys.argv[1:])
