"""Fuzzes the targets, one on each core at a time: `python run.py SECONDS [TARGET ...]`. `make fuzz` runs it.

SECONDS is the processor time of each target, so a loaded machine takes longer but does the same work.
"""
import math
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
TARGETS = ('requests', 'responses', 'batches', 'payloads', 'logins', 'names', 'rows', 'files', 'settings', 'patterns',
           'control', 'schemas')
SHOWN_LINES = 40
NOISE = re.compile(r'#\d+\t|INFO: |WARNING: |You can likely resolve')
"""The progress lines of libFuzzer. A sanitizer's report comes after these lines, and contains a long stack of the
Python interpreter.
"""


def environment() -> Mapping[str, str]:
    """Return the variables of a run.

    They make the process load the library with the table of coverage before the sanitizer (see coverage_map.c), and the
    C++ library: when the sanitizer starts, it looks for the functions that throw C++ exceptions, which atheris uses.
    """
    compiler = os.environ.get('CC', 'cc').split()[-1]
    libraries = [subprocess.run([compiler, f'-print-file-name={name}'], check=True, capture_output=True,
                                text=True).stdout.strip() for name in ('libasan.so', 'libstdc++.so')]
    return {**os.environ, 'LD_PRELOAD': ' '.join((str(BUILD / 'coverage_map.so'), *libraries)),
            'ASAN_OPTIONS': 'verify_asan_link_order=0:detect_leaks=0:allocator_may_return_null=1',
            'UBSAN_OPTIONS': 'print_stacktrace=1', 'PYTHONMALLOC': 'malloc',
            'PYTHONPATH': os.pathsep.join(map(str, (BUILD / 'lib', HERE.parent, BUILD / 'packages')))}


def run(target: str, seconds: int, variables: Mapping[str, str]) -> tuple[int, str, float]:
    """Fuzz a target for `seconds` of wall time. Return the exit status, the output, and the seconds of processor
    time."""
    command = [sys.executable, '-P', str(HERE / 'guided.py'), target, str(seconds), str(BUILD / 'corpus' / target)]
    with tempfile.TemporaryFile('w+', errors='replace') as output:
        process = subprocess.Popen(command, env=variables, stdout=output, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        return process.returncode, output.read(), usage.ru_utime + usage.ru_stime


def fuzz(target: str, seconds: float, variables: Mapping[str, str]) -> bool:
    """Fuzz a target for `seconds` of processor time. Print a line, and the beginning of the report if it found a fault.

    Return True if it found no fault.
    """
    begin, spent_s, runs, failed, output = time.monotonic(), 0.0, 0, 0, ''
    while spent_s < seconds and not failed:
        failed, output, used_s = run(target, math.ceil(seconds - spent_s), variables)
        spent_s += used_s
        runs += sum(map(int, re.findall(r'number_of_executed_units: (\d+)', output)))
    log = BUILD / f'{target}.log'
    log.write_text(output)
    found = re.findall(r'ft: (\d+) corp: (\d+)', output)
    features, inputs = found[-1] if found else ('no', 'no')
    print(f'{target}: {"A FAULT" if failed else "clean"}, {runs} runs in {spent_s:.0f} s of processor time and '
          f'{time.monotonic() - begin:.0f} s, {features} features, {inputs} inputs', flush=True)
    if failed:
        lines = [line for line in output.splitlines() if not NOISE.match(line)]
        print(*lines[:SHOWN_LINES], f'All of it is in {log}.', sep='\n', flush=True)
    return not failed


def main(seconds: str, *targets: str) -> None:
    # libFuzzer ends its process without a cleanup, and the temporary directory of the target remains. It is therefore
    # put in this one.
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        variables = {**environment(), 'TMPDIR': temporary}
        if not all(list(pool.map(lambda target: fuzz(target, float(seconds), variables), targets or TARGETS))):
            sys.exit(1)


if __name__ == '__main__':
    main(*sys.argv[1:])
