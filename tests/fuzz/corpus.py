"""The corpus: for each target, a file with inputs as hexadecimal lines. An input reached new code when `make fuzz`
found it.

    python tests/fuzz/corpus.py

The command adds inputs from build/fuzz/corpus, where `make fuzz` keeps everything that it finds, to these files.
"""
from __future__ import annotations

import pathlib
from collections.abc import Iterable

HERE = pathlib.Path(__file__).parent
FOUND = HERE.parent.parent / 'build' / 'fuzz' / 'corpus'
MOST_INPUTS = 100
MOST_BYTES = 256
"""The size in bytes of the longest input in the corpus. Longer inputs are omitted, because short inputs find faults as
well.
"""


def kept_inputs(target: str) -> list[bytes]:
    """Return the inputs of a target that are in the repository. A new target has no inputs there."""
    file = HERE / 'corpus' / f'{target}.txt'
    return [bytes.fromhex(line) for line in file.read_text().splitlines()] if file.exists() else []


def chosen(directory: pathlib.Path, kept: Iterable[bytes]) -> list[bytes]:
    """Choose inputs of different lengths from `directory` and `kept`. Omit seeds and former faults. The inputs in
    `kept` are not in `directory`, because a run starts with them and does not find them again.
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
