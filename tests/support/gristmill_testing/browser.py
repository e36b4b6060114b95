"""A real browser for tests: Chromium without a window, driven through its debugging pipe. It needs no other package.

Messages are JSON with a zero byte behind each, on two pipes that the browser finds as file descriptors 3 and 4.
"""

import base64
import fcntl
import json
import os
import shutil
import subprocess
from pathlib import Path

ARGUMENTS = (
    "--headless=new --no-sandbox --disable-gpu --no-first-run --disable-extensions --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars --force-color-profile=srgb --remote-debugging-pipe"
)


def find_chromium():
    """The browser's program, or None."""
    return next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )


class Browser:
    """One browser process. Pages are opened one after another, each without memory of the others."""

    def __init__(self, program, folder):
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        # Above 9, so that neither is one of the numbers that the browser looks for.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (to_browser, from_browser)]

        def place_ends():
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        self._process = subprocess.Popen(
            [program, *ARGUMENTS.split(), f"--user-data-dir={folder}"], preexec_fn=place_ends,  # noqa: PLW1509

            pass_fds=(3, 4), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        for end in (to_browser, from_browser, *ends):
            os.close(end)
        self._number = 0
        self._received = b""
        self.events = []

    def close(self):
        try:
            self.send("Browser.close")
        except EOFError:
            pass
        self._process.wait(20)
        os.close(self._write)
        os.close(self._read)

    def send(self, method, session=None, **parameters):
        """Send a command and return its result; events that come first are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self.events.append(answer)

    def wait_for(self, method, session):
        """Wait for an event that has come or is to come."""
        while True:
            for number, event in enumerate(self.events):
                if event.get("method") == method and event.get("sessionId") == session:
                    return self.events.pop(number)["params"]
            self.events.append(self._receive())

    def _receive(self):
        while b"\0" not in self._received:
            data = os.read(self._read, 1 << 20)
            if not data:
                raise EOFError("the browser has ended")
            self._received += data
        message, _, self._received = self._received.partition(b"\0")
        return json.loads(message)

    def open(self, url, *, width=1200, height=900, dark=False):
        """Open an address in a window of this size, and wait until it is loaded."""
        return Page(self, url, width, height, dark=dark)


class Page:
    """A page of the browser. `requests` are the addresses that it asked for, `errors` what its scripts raised."""

    def __init__(self, browser, url, width, height, *, dark):
        self.browser = browser
        context = browser.send("Target.createBrowserContext")["browserContextId"]
        target = browser.send("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        self.session = browser.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._target, self._context = target, context
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.send(f"{domain}.enable")
        self.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self.go(url)

    def send(self, method, **parameters):
        return self.browser.send(method, self.session, **parameters)

    def go(self, url):
        self.browser.events = [e for e in self.browser.events if e.get("method") != "Page.loadEventFired"]
        answer = self.send("Page.navigate", url=url)
        self.status = answer.get("errorText")
        self.browser.wait_for("Page.loadEventFired", self.session)

    def resize(self, width, height):
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def run(self, script):
        """The value of a JavaScript expression; promises are awaited."""
        result = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"]["exception"].get("description", result))
        return result["result"].get("value")

    def wait(self, script, seconds=20):
        """Wait in the page until an expression is true."""
        return self.run(
            f"new Promise((done, fail) => {{ const end = performance.now() + {seconds * 1000}; const look = () => {{ "
            f"let value; try {{ value = ({script}); }} catch (error) {{ return fail(error); }} "
            "if (value) return done(value); if (performance.now() > end) "
            f"return fail(new Error('waited in vain: ' + {json.dumps(script)})); setTimeout(look, 20); }}; look(); }})"
        )

    def press(self, key, text=""):
        """Press a key, as a person would."""
        for kind in ("keyDown", "keyUp"):
            extra = {"text": text or "\r"} if kind == "keyDown" and (text or key == "Enter") else {}
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, **extra, **_KEY_CODES.get(key, {}))

    def type(self, text):
        self.send("Input.insertText", text=text)

    def screenshot(self, path, *, full=True):
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 6000), "scale": 1}
        extra = {"captureBeyondViewport": True, "clip": clip} if full else {}
        data = self.send("Page.captureScreenshot", format="png", **extra)["data"]
        Path(path).write_bytes(base64.b64decode(data))

    @property
    def requests(self):
        events = [e for e in self.browser.events if e.get("sessionId") == self.session]
        return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]

    @property
    def problems(self):
        """What scripts raised, and what the console or the policy complained about."""
        events = [e for e in self.browser.events if e.get("sessionId") == self.session]
        raised = [e["params"]["exceptionDetails"]["text"] for e in events if e["method"] == "Runtime.exceptionThrown"]
        return raised + [e["params"]["entry"]["text"] for e in events if e["method"] == "Log.entryAdded"]

    def close(self):
        self.browser.send("Target.closeTarget", targetId=self._target)
        self.browser.events = [e for e in self.browser.events if e.get("sessionId") != self.session]


_KEY_CODES = {
    "Enter": {"windowsVirtualKeyCode": 13},
    "Tab": {"windowsVirtualKeyCode": 9},
    "ArrowRight": {"windowsVirtualKeyCode": 39},
    "ArrowLeft": {"windowsVirtualKeyCode": 37},
    "ArrowDown": {"windowsVirtualKeyCode": 40},
    "ArrowUp": {"windowsVirtualKeyCode": 38},
    "Escape": {"windowsVirtualKeyCode": 27},
}
