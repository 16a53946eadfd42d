"""Writes docs/timeline.svg, the picture of the page about stuck transactions: run this file after a change of the
timeline.

The transactions are those of real producers on a real broker. A browser draws the page of `kbroker-transactions
timeline --html`. The picture is that of the page, with its colours for light and dark. It has offsets and no times, so
that each run draws the same.
"""
import pathlib
import re
import sys
import tempfile

ROOT = pathlib.Path(__file__).parents[3]
if __name__ == '__main__':
    sys.path[:0] = [str(ROOT), str(ROOT / 'tests')]

from support.brokers.broker_process import PROMPT, BrokerProcess  # noqa: E402
from support.clients.librdkafka import LIMIT_S, create_topics  # noqa: E402
from support.clients.written_transactions import producer_of  # noqa: E402
from support.runner.browser import OpenPage  # noqa: E402
from support.runner.command_runner import run_command  # noqa: E402

PICTURE = ROOT / 'docs' / 'timeline.svg'
SIZE = (964, 600)
MARGIN = 8
"""The space above the picture, in pixels."""
STEPS = '''
    billing-1: 4  billing-2: 2  billing-1: commit  billing-2: 3  billing-2: abort  billing-1: 5  billing-1: commit
    billing-2: 6  shipping-1: 3  billing-2: commit  shipping-1: commit  billing-1: 2  billing-1: commit  shipping-1: 2
    billing-2: 3  billing-1: 3  billing-2: commit  billing-1: commit  billing-1: 4  billing-2: 2  billing-1: commit
    billing-2: abort  billing-1: 3  billing-1: commit
'''
"""The steps of the producers, in this order: write a number of records, or end their transaction. The last one of
`shipping-1` stays open.
"""
ELEMENTS = '''(() => {
  const picture = document.getElementById('lanes').cloneNode(true);
  picture.querySelectorAll('title').forEach(title => title.remove());
  return new XMLSerializer().serializeToString(picture);
})()'''
IS_USED = "document.querySelector('#lanes ' + %r) !== null"


def write_history(address):
    """Write the transactions. Return the producers, because the end of a producer would abort its transaction."""
    create_topics(address, orders=1)
    steps = re.findall(r'(\S+): (\S+)', STEPS)
    producers = {name: producer_of(address, name) for name in dict.fromkeys(name for name, _ in steps)}
    writing = set()
    for name, step in steps:
        producer = producers[name]
        if step.isdecimal():
            if name not in writing:
                producer.begin_transaction()
                writing.add(name)
            for _ in range(int(step)):
                producer.produce('orders', b'value', partition=0)
            assert producer.flush(LIMIT_S) == 0
        else:
            getattr(producer, f'{step}_transaction')(LIMIT_S)
            writing.discard(name)
    return producers


def rules_of(html, opened):
    """Return the colours of the page's style, and the rules that the picture uses."""
    style = re.search(r'<style>(.*?)</style>', html, re.DOTALL)[1]
    colours = [re.sub(r'\s+', ' ', block).strip() for block in re.findall(
        r'^:root \{.*?\}|^@media \(prefers-color-scheme: dark\) \{.*?\}\s*\}', style, re.DOTALL | re.MULTILINE)]
    rules = re.findall(r'(?:^|(?<=\} ))((?:rect|text)?[.][\w.-]+|text) (\{[^{}]*\})', style, re.MULTILINE)
    return colours + [f'{selector} {body}' for selector, body in rules
                      if opened.value(IS_USED % selector)]


def picture(directory):
    """Return the picture as SVG. `directory` is empty."""
    with BrokerProcess(directory / 'data', PROMPT) as broker:
        producers = write_history(broker.address)
        page = directory / 'page.html'
        done = run_command('transactions', '--bootstrap-server', broker.address, 'timeline', 'orders:0', '--html', page)
        assert done.returncode == 0, done.stderr
        del producers
    with OpenPage(page, size=SIZE) as opened:
        rules = rules_of(page.read_text(), opened)
        elements = opened.value(ELEMENTS)
        assert opened.faults == []
    end = elements.index('>') + 1
    width, height = map(int, re.search(r'viewBox="0 0 (\d+) (\d+)"', elements).groups())
    size = f'width="{width}" height="{height + MARGIN}"'
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 {-MARGIN} {width} {height + MARGIN}" '
            'font-family="sans-serif">\n<style>\n' + '\n'.join([*rules, '.ground { fill: var(--ground); }'])
            + f'\n</style>\n<rect class="ground" y="{-MARGIN}" {size}/>\n')
    return head + elements[end:].replace('><', '>\n<') + '\n'


if __name__ == '__main__':
    with tempfile.TemporaryDirectory() as directory:
        PICTURE.write_text(picture(pathlib.Path(directory)))
