"""A program in which one client writes random transactions until it is killed. It exits if the client hangs.

    python random_transactions.py MODULE CLIENT HOST:PORT TOPIC SEED START

The program prints a line with the values of a transaction when the transaction begins, and a line when it has committed
or aborted. Without the second line, the outcome is unknown: the transaction may even have been committed with a part of
its values.
"""
import contextlib
import faulthandler
import importlib
import logging
import pathlib
import random
import sys

CLIENT_LIMIT_S = 10
HANG_S = 45
"""The most seconds of a transaction. If it takes longer, the process prints the stacks of its threads and exits."""
TIMEOUT_MS = 10_000
WITHOUT_OFFSETS = {'ConfluentClient'}
"""The clients that commit no offsets in their transactions. After a cut, librdkafka 2.x may lose its request with
offsets, and then waits for the answer for ever."""


class RandomTransactions:
    """Random transactions of one client. After an error, a new producer fences the previous one."""

    def __init__(self, client, topic, seed, start):
        self._client, self._topic = client, topic
        self._name = type(client).__name__
        self._random = random.Random(f'{seed} {self._name} {start}')
        self._prefix, self._count = f'{self._name}-{start}', 0

    def run(self):
        while True:
            with contextlib.suppress(Exception):
                faulthandler.dump_traceback_later(HANG_S, exit=True)
                self._run_producer()

    def _run_producer(self):
        with (self._client.consumer(f'group-{self._name}') as consumer,
              self._client.transactional(self._name, TIMEOUT_MS) as producer):
            while True:
                faulthandler.dump_traceback_later(HANG_S, exit=True)
                self._run_transaction(producer, consumer)

    def _run_transaction(self, producer, consumer):
        self._count += 1
        values = [f'{self._prefix}-{self._count}-{number}' for number in range(self._random.randint(1, 4))]
        print('began', *values, flush=True)
        producer.begin()
        for value in values:
            producer.send(self._topic, 0, value)
        if self._random.random() < 0.5:
            producer.flush()
        if self._name not in WITHOUT_OFFSETS:
            producer.send_offsets({(self._topic, 0): self._count}, consumer)
        if self._random.random() < 0.7:
            producer.commit()
            producer.flush()    # aiokafka commits without the batches that failed, which their futures report
            print('committed', flush=True)
        else:
            producer.abort()
            print('aborted', flush=True)


def main(module_name, client_name, address, topic, seed, start):
    logging.disable()
    faulthandler.enable()
    module = importlib.import_module(module_name)
    module.LIMIT_S = CLIENT_LIMIT_S
    RandomTransactions(getattr(module, client_name)(address), topic, seed, start).run()


if __name__ == '__main__':
    sys.path[:0] = [str(pathlib.Path(__file__).parents[level]) for level in (0, 1, 2)]
    main(*sys.argv[1:])
