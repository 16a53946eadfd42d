"""One run of coverage-guided fuzzing: `python guided.py TARGET SECONDS CORPUS [options of libFuzzer]`.

`make fuzz` runs it on a build with sanitizers. It ends with an error at the first fault, and leaves the input of the
fault in CORPUS.
"""
import ctypes
import pathlib
import sys

import atheris
from atheris import core_with_libfuzzer
from fuzz.corpus import kept_inputs

LONGEST_INPUT_BYTES = 4096
LONGEST_RUN_S = 10
MOST_MEMORY_MIB = 4096

if ctypes.CDLL(None).begin_coverage(core_with_libfuzzer.__file__.encode()):
    sys.exit(f'{core_with_libfuzzer.__file__}: expected a library with libFuzzer')

READERS_IN_PYTHON = ['kbroker.base.linear_pattern', 'kbroker.log', 'kbroker.metadata', 'kbroker.record',
                     'kbroker.security', 'kbroker.settings.config', 'kbroker.settings.jaas',
                     'kbroker.settings.listeners', 'kbroker.settings.properties', 'kbroker.settings.table',
                     'kbroker_tools.console.avro_json', 'kbroker_tools.console.protobuf_json', 'kbroker_tools.registry']
"""The modules in Python whose coverage guides the run. All other code that reads bytes is compiled. Each module in this
list makes the start a second longer.
"""

with atheris.instrument_imports(include=READERS_IN_PYTHON):
    from fuzz.targets import TARGETS


def main(name: str, seconds: str, corpus: str, *options: str) -> None:
    target, directory = TARGETS[name], pathlib.Path(corpus)
    directory.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate((*target.seeds(), *kept_inputs(name))):
        (directory / f'seed-{number}').write_bytes(seed)
    atheris.Setup([name, corpus, f'-max_total_time={seconds}', f'-max_len={LONGEST_INPUT_BYTES}',
                   f'-timeout={LONGEST_RUN_S}', f'-rss_limit_mb={MOST_MEMORY_MIB}', '-print_final_stats=1',
                   f'-artifact_prefix={corpus}/fault-', *options], target.run)
    atheris.Fuzz()


main(*sys.argv[1:])
