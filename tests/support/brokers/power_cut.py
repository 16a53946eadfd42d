"""Starts a broker after a simulated power cut that lost unsynced writes: `power_cut.py DIRECTORY TOPIC -- ...`.

Before the broker starts, the program cuts off the last batch of each partition of the topics whose names end with
TOPIC. This loses a write that the broker acknowledged before its sync. The metadata log stays whole, because a broker
refuses to start if it has lost the record that names a partition. The arguments after `--` are those of kbroker.
"""
import pathlib
import sys

from kbroker.daemon.main import main
from kbroker.metadata.topic_operations import CLUSTER_METADATA
from kbroker.record.batch import iter_batches


def cut_last_batch(log: pathlib.Path) -> None:
    data = log.read_bytes()
    end = last = 0
    for _, batch in iter_batches(memoryview(data)):
        end, last = end + len(batch), len(batch)
    with log.open('r+b') as file:
        file.truncate(end - last)


def cut(directory: pathlib.Path, topic: str) -> None:
    for partition in directory.glob(f'*{topic}-[0-9]*'):
        if partition.name != f'{CLUSTER_METADATA}-0':
            cut_last_batch(max(partition.glob('*.log')))


if __name__ == '__main__':
    cut(pathlib.Path(sys.argv[1]), sys.argv[2])
    sys.argv[1:] = sys.argv[sys.argv.index('--') + 1:]
    main()
