"""Functions that run programs under callgrind, start its counting, and read its counts."""
from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Sequence

import kbroker

LIMIT_S = 1500
HERE = pathlib.Path(__file__).parent
COUNTS_LATER = '--instr-atstart=no'
"""An option of callgrind with which counting begins only when the program starts it. Until then, the program runs
several times as fast.
"""


def run_program(name: str, *arguments: object, under: Sequence[str] = (), bytecode: pathlib.Path) -> str:
    """Run a program of this directory with a fixed hash seed, on the modules of kbroker that this process imports. Its
    bytecode is in the directory `bytecode`. Return its output.
    """
    env = {key: value for key, value in os.environ.items() if key != 'PYTHONDONTWRITEBYTECODE'}
    path = os.pathsep.join(map(str, (pathlib.Path(kbroker.__file__).parents[1], HERE)))
    done = subprocess.run([*under, sys.executable, '-P', str(HERE / name), *map(str, arguments)], capture_output=True,
                          text=True, timeout=LIMIT_S, check=False,
                          env=env | {'PYTHONHASHSEED': '0', 'PYTHONPYCACHEPREFIX': str(bytecode), 'PYTHONPATH': path})
    assert done.returncode == 0, done.stderr
    return done.stdout


def callgrind(output: pathlib.Path, *options: str) -> list[str]:
    """Return the command-line words that run a command under callgrind. With COUNTS_LATER, the program must call
    `count_from_now_on`.
    """
    return ['valgrind', '--tool=callgrind', '--dump-line=no', f'--callgrind-out-file={output}', *options]


def read_total(output: pathlib.Path) -> int:
    """Return the number of instructions in a file that callgrind wrote."""
    total, = re.findall(r'^totals: (\d+)$', output.read_text(), re.MULTILINE)
    return int(total)


def count_from_now_on() -> None:
    """Switch callgrind's counting on. Without Valgrind, do nothing."""
    if 'vgpreload' in os.environ.get('LD_PRELOAD', ''):
        command = ['callgrind_control', '--instr=on', str(os.getpid())]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as switch:
            while switch.poll() is None:  # callgrind answers only a process that runs
                pass
        assert switch.returncode == 0, f'{command}: exit code {switch.returncode}'
