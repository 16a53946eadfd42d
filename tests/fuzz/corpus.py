"""The corpus: inputs that reached new code when `make fuzz` found them, in a file of hexadecimal lines for each target.

    python tests/fuzz/corpus.py

The command adds to the files from build/fuzz/corpus, where `make fuzz` keeps all that it finds.
"""
from __future__ import annotations

import pathlib
from collections.abc import Iterable

HERE = pathlib.Path(__file__).parent
FOUND = HERE.parent.parent / 'build' / 'fuzz' / 'corpus'
MOST_INPUTS = 100
MOST_BYTES = 256
"""The corpus omits longer inputs, because short inputs find faults as well."""


def kept_inputs(target: str) -> list[bytes]:
    """Return the inputs of a target that are in the tree. A new target has none."""
    file = HERE / 'corpus' / f'{target}.txt'
    return [bytes.fromhex(line) for line in file.read_text().splitlines()] if file.exists() else []


def chosen(directory: pathlib.Path, kept: Iterable[bytes]) -> list[bytes]:
    """Return inputs of all lengths from `directory` and `kept`, without the seeds and the faults.

    A run does not find the kept inputs again, because they are among its seeds.
    """
    found = {path.read_bytes() for path in directory.iterdir()
             if path.stat().st_size <= MOST_BYTES and not path.name.startswith(('seed-', 'fault-'))}
    inputs = sorted(found.union(kept), key=lambda data: (len(data), data))
    step = max(1, -(-len(inputs) // MOST_INPUTS))
    return inputs[::step]


def main() -> None:
    (HERE / 'corpus').mkdir(exist_ok=True)
    for directory in sorted(FOUND.iterdir()):
        lines = [data.hex() + '\n' for data in chosen(directory, kept_inputs(directory.name))]
        (HERE / 'corpus' / f'{directory.name}.txt').write_text(''.join(lines))


if __name__ == '__main__':
    main()
