"""A headless browser that opens a page and returns its HTML, after its script has run, or its pixels."""
import contextlib
import json
import os
import select
import signal
import struct
import subprocess
import tempfile
import zlib
from collections import Counter

LIMIT_S = 120
FLAGS = ('--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--hide-scrollbars',
         '--disable-background-networking', '--disable-component-update', '--disable-sync')


def dump_dom(page, fragment=''):
    """Return the page as HTML after its script has run."""
    return _run(page, fragment, '--dump-dom').decode()


def screenshot(page, path, fragment='', size=(1400, 900), dark=False):
    """Write a screenshot of the page to `path`. Return its pixels."""
    _run(page, fragment, f'--screenshot={path}', f'--window-size={size[0]},{size[1]}',
         f'--blink-settings=preferredColorScheme={0 if dark else 1}')
    return Picture(path.read_bytes())


def _run(page, fragment, *arguments):
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = ['chromium', *FLAGS, f'--user-data-dir={profile}', *arguments, page.as_uri() + fragment]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              start_new_session=True) as process:
            try:
                output, errors = process.communicate(timeout=LIMIT_S)
            finally:
                _end_session(process)
    assert process.returncode == 0, errors.decode(errors='replace')[-2000:]
    return output


def _end_session(process):
    """Kill the browser and the processes that it started."""
    with contextlib.suppress(ProcessLookupError):  # all of them have ended
        os.killpg(process.pid, signal.SIGKILL)


class Picture:
    """The pixels of a PNG screenshot, which has 8 bits a channel. A colour is (red, green, blue)."""

    def __init__(self, data):
        assert data[:8] == b'\x89PNG\r\n\x1a\n'
        compressed = b''
        position = 8
        while position < len(data):
            length, kind = struct.unpack_from('>I4s', data, position)
            body = data[position + 8:position + 8 + length]
            if kind == b'IHDR':
                self.width, self.height, depth, colour, _, _, interlace = struct.unpack('>IIBBBBB', body)
                assert depth == 8 and colour in (2, 6) and interlace == 0
                self._channels = {2: 3, 6: 4}[colour]
            elif kind == b'IDAT':
                compressed += body
            position += length + 12
        self._rows = self._unfiltered(zlib.decompress(compressed))

    def _unfiltered(self, data):
        """Undo the filters of PNG (none, left, up, average, Paeth), row by row."""
        stride, channels = self.width * self._channels, self._channels
        rows, above = [], bytearray(stride)
        for start in range(0, len(data), stride + 1):
            kind, row = data[start], bytearray(data[start + 1:start + 1 + stride])
            for at in range(stride if kind else 0):
                left = row[at - channels] if at >= channels else 0
                corner = above[at - channels] if at >= channels else 0
                row[at] = (row[at] + self._predicted(kind, left, above[at], corner)) & 0xFF
            rows.append(row)
            above = row
        return rows

    @staticmethod
    def _predicted(kind, left, up, corner):
        if kind == 1:
            return left
        if kind == 2:
            return up
        if kind == 3:
            return (left + up) // 2
        estimate = left + up - corner
        return min((left, up, corner), key=lambda value: abs(estimate - value))

    def at(self, x, y):
        return tuple(self._rows[y][x * self._channels:x * self._channels + 3])

    def colours(self):
        """Return the number of pixels of each colour."""
        return Counter(self.at(x, y) for y in range(self.height) for x in range(self.width))


class OpenPage:
    """A page that a test operates through the DevTools protocol: JSON messages, each ended by a zero byte."""

    def __init__(self, page, fragment='', size=(1400, 900)):
        self._address = page.as_uri() + fragment
        self._size = size
        self._number = 0
        self._session = None
        self._buffered = b''
        self.faults = []
        """The texts of the errors that the page's script raised, and of the violations of the page's content security
        policy.
        """

    def __enter__(self):
        with contextlib.ExitStack() as opened:
            self._start(opened)
            self._load()
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *_):
        self._opened.close()

    def _start(self, opened):
        """Start the browser. Register in `opened` that it is ended later."""
        profile = opened.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        with contextlib.ExitStack() as inherited:
            read_end, self._to = os.pipe()
            inherited.callback(os.close, read_end)
            opened.callback(os.close, self._to)
            self._from, write_end = os.pipe()
            inherited.callback(os.close, write_end)
            opened.callback(os.close, self._from)
            command = ['chromium', *FLAGS, f'--user-data-dir={profile}', '--remote-debugging-pipe', 'about:blank']
            # The browser reads from descriptor 3 and writes to 4. bash can move any descriptor there, sh cannot.
            process = subprocess.Popen(
                ['bash', '-c', f'exec "$@" 3<&{read_end} 4>&{write_end}', 'bash', *command],
                pass_fds=(read_end, write_end), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL, start_new_session=True)
        opened.callback(process.wait)
        opened.callback(_end_session, process)

    def _load(self):
        """Open the page in a tab, and wait until it is loaded."""
        target = self._ask('Target.createTarget', url='about:blank')['targetId']
        self._session = self._ask('Target.attachToTarget', targetId=target, flatten=True)['sessionId']
        for domain in ('Page', 'Runtime', 'Log'):
            self._ask(f'{domain}.enable')
        self._ask('Emulation.setDeviceMetricsOverride', width=self._size[0], height=self._size[1], deviceScaleFactor=1,
                  mobile=False)
        self._navigate(self._address)

    def _navigate(self, address):
        self._send('Page.navigate', url=address)
        self._until(lambda message: message.get('method') == 'Page.loadEventFired')

    def open_next(self, page):
        """Open another page in the same tab."""
        self._navigate(page.as_uri())

    def prefer(self, colours):
        """Let the reader prefer 'light' or 'dark' pages."""
        self._ask('Emulation.setEmulatedMedia', features=[{'name': 'prefers-color-scheme', 'value': colours}])

    def value(self, expression):
        """Wait until the page has drawn its next frame. Then evaluate the expression in the page, and return its value.
        """
        drawn = f'new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done({expression}))))'
        answer = self._ask('Runtime.evaluate', expression=drawn, awaitPromise=True, returnByValue=True)
        assert 'exceptionDetails' not in answer, answer['exceptionDetails']
        return answer['result'].get('value')

    def print_preview(self):
        """Switch the page to its print layout."""
        self._ask('Emulation.setEmulatedMedia', media='print')

    def hover(self, x, y):
        self._ask('Input.dispatchMouseEvent', type='mouseMoved', x=x, y=y)

    def wheel(self, x, y, delta):
        """Turn the mouse wheel while Ctrl is held."""
        self._ask('Input.dispatchMouseEvent', type='mouseWheel', x=x, y=y, deltaX=0, deltaY=delta, modifiers=2)

    def drag(self, start, end):
        for kind, (x, y) in (('mousePressed', start), ('mouseMoved', end), ('mouseReleased', end)):
            self._ask('Input.dispatchMouseEvent', type=kind, x=x, y=y, button='left', buttons=1, clickCount=1)

    def press(self, key):
        text = {'text': key} if len(key) == 1 else {}
        for kind in ('keyDown', 'keyUp'):
            self._ask('Input.dispatchKeyEvent', type=kind, key=key, **(text if kind == 'keyDown' else {}))

    def _ask(self, method, **parameters):
        number = self._send(method, **parameters)
        answer = self._until(lambda message: message.get('id') == number)
        assert 'error' not in answer, answer['error']
        return answer['result']

    def _send(self, method, **parameters):
        self._number += 1
        message = {'id': self._number, 'method': method, 'params': parameters}
        if self._session is not None:
            message['sessionId'] = self._session
        os.write(self._to, json.dumps(message).encode() + b'\0')
        return self._number

    def _until(self, accept):
        while True:
            while b'\0' not in self._buffered:
                waiting = select.poll()  # unlike `select.select`, it takes descriptors above 1,023
                waiting.register(self._from, select.POLLIN)
                data = os.read(self._from, 1 << 16) if waiting.poll(LIMIT_S * 1000) else b''
                assert data, 'the browser does not answer'
                self._buffered += data
            text, _, self._buffered = self._buffered.partition(b'\0')
            message = json.loads(text)
            if message.get('method') == 'Runtime.exceptionThrown':
                self.faults.append(message['params']['exceptionDetails'].get('exception', {}).get('description'))
            elif message.get('method') == 'Log.entryAdded':
                self.faults.append(message['params']['entry']['text'])
            if accept(message):
                return message
