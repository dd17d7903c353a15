"""Drive an installed Chromium through its DevTools protocol: pages, what they ask for, what they complain of."""

import base64
import contextlib
import json
import shutil
import subprocess
import time
from itertools import count
from urllib.request import ProxyHandler, build_opener

import pytest
import websocket
from conftest import PATIENCE_S

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@contextlib.contextmanager
def chromium(profile):
    """A browser whose profile is in the folder `profile`; yields its first tab.

    An installed browser that does not start here skips the test: a container may lack what it needs.
    """
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]
    command += ["--disable-dev-shm-usage", "--remote-debugging-port=0", "--remote-allow-origins=*"]
    process = subprocess.Popen(
        [*command, f"--user-data-dir={profile}", "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        try:
            address = _find_tab(profile / "DevToolsActivePort", process)
        except (OSError, IndexError, ValueError) as error:
            pytest.skip(f"{CHROMIUM} does not start here: {error}")
        tab = Tab(websocket.create_connection(address, timeout=PATIENCE_S, suppress_origin=True))
        yield tab
        tab.socket.close()
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def _find_tab(file, process):
    """The address of the first tab; `file` names the port once the browser listens."""
    end, opener = time.monotonic() + PATIENCE_S, build_opener(ProxyHandler({}))
    while True:
        try:
            port = file.read_text().split("\n")[0]
            tabs = json.load(opener.open(f"http://127.0.0.1:{port}/json", timeout=60))
            address, *_ = (tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
            return address
        except (OSError, IndexError, ValueError):
            if time.monotonic() > end or process.poll() is not None:
                raise
            time.sleep(0.05)


class Tab:
    """A tab: `complaints` of the console and `requests` for addresses since the page was opened."""

    def __init__(self, socket):
        self.socket, self.numbers = socket, count(1)
        self.events, self.complaints, self.requests = [], [], []
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        """Call a method of the protocol and return its result."""
        number = next(self.numbers)
        self.socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while (message := json.loads(self.socket.recv())).get("id") != number:
            self._note(message)
        assert "error" not in message, message["error"]
        return message["result"]

    def _note(self, message):
        method, parameters = message.get("method"), message.get("params", {})
        self.events.append(method)
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(parameters["exceptionDetails"]["exception"]["description"])
        elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.complaints.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}")

    def open(self, address, width=1440, height=900, dark=False):
        """Open an address and wait until it is loaded."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        # An address that differs in its fragment only would not be loaded again.
        self.call("Page.navigate", url="about:blank")
        self.events, self.complaints, self.requests = [], [], []
        self.call("Page.navigate", url=address)
        self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'")

    def wait_for(self, condition):
        """Wait until a JavaScript expression is true, in this page or the one that follows it."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            with contextlib.suppress(AssertionError):  # between two pages nothing can be evaluated
                if self.run(condition):
                    return
            time.sleep(0.02)
        raise AssertionError(condition)

    def run(self, script):
        """Return the value of a JavaScript expression."""
        done = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def press(self, key):
        """Press a key."""
        named = {"Enter": 13, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Tab": 9, "Escape": 27}
        text = {} if key in named and key != "Enter" else {"text": "\r" if key == "Enter" else key}
        code = {"windowsVirtualKeyCode": named[key]} if key in named else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text, **code)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, **code)

    def mouse(self, kind, x, y, **more):
        """Move, press, release or turn the wheel of the mouse: ``Moved``, ``Pressed``, ``Released``, ``Wheel``."""
        button = {} if kind == "Moved" else {"button": "left", "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type=f"mouse{kind}", x=x, y=y, **button | more)

    def picture(self, file):
        """Save what the tab shows as PNG."""
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))
