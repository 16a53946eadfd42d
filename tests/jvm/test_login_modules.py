"""kbroker reads values of `sasl.jaas.config` as Kafka does."""
import json
import random
import subprocess

import pytest
from support.kafka.apache_kafka import TOOL_LIMIT_S, java

from kbroker.settings.jaas import JaasError, parse_jaas

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

PIECES = ['user_a', 'b', '=', '"', "'", '"x"', "'y'", ' ', '\t', '\n', ';', '//', '/*', '*/', '/', '\\', '\\n', '\\012',
          '\\477', '1', '12.5', '-', '-x', '.', '.x', '_', '$', '#', 'ä', '\x9f', '\xa0', '𝄞', '@', '(', '""', 'a="b" ']
WHOLE = ['a.b.C required;', 'a.b.C REQUIRED x="1" y=z;', 'a.b.C optional x="1" x="2" ;', 'a.b.C sufficient // x\n;',
         '"a.b.C" requisite "k e"=v;', 'a.b.C wanted;', 'a.b.C required', '', 'a', 'a required; b required;']


def texts():
    chance = random.Random(14)
    yield from WHOLE
    for _ in range(6000):
        body = ''.join(chance.choice(PIECES) for _ in range(chance.randrange(9)))
        yield chance.choice((f'a.b.C required {body};', f'a.b.C required k="{body}";', f'a.b.C required k={body} ;',
                             body))


def test_kbroker_reads_what_kafka_reads():
    """There is one difference: kbroker refuses a value whose quote is not closed on its line, but for Kafka the value
    ends at the end of the line.
    """
    wanted = list(texts())
    done = subprocess.run(java('kbroker.LoginModules'), input=''.join(f'{json.dumps(text)}\n' for text in wanted),
                          capture_output=True, text=True, timeout=TOOL_LIMIT_S, check=True)
    kafkas = [json.loads(line) for line in done.stdout.splitlines()]
    assert sum(found is not None for found in kafkas) > 500
    for text, theirs in zip(wanted, kafkas, strict=True):
        try:
            module = parse_jaas(text)
        except JaasError as error:
            assert theirs is None or 'within the quotes' in str(error), (text, theirs)
        else:
            assert [module.name, f'LoginModuleControlFlag: {module.flag}', dict(module.options)] == theirs, text
