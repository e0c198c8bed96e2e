"""A real browser, driven over a pipe by its DevTools protocol with nothing but the standard
library."""

import base64
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
QUIET = ("--no-first-run", "--disable-background-networking", "--disable-extensions")
SLOWEST = 60  # seconds for any answer


def find() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


def _pipe() -> list[int]:
    """With numbers that are out of the way of 3 and 4."""
    low = os.pipe()
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in low]
    for end in low:
        os.close(end)
    return high


class Browser:
    """One page. Complaints of its console and exceptions are kept in `complaints`."""

    def __init__(self, program: str):
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        out, commands = _pipe()
        answers, back = _pipe()
        # The browser reads commands from descriptor 3 and answers on 4.
        shell = f'exec "$@" 3<&{out} 4>&{back}'
        flags = (*FLAGS, *QUIET, "--remote-debugging-pipe", f"--user-data-dir={self.profile.name}")
        self.process = subprocess.Popen(
            ["bash", "-c", shell, "bash", program, *flags],
            pass_fds=(out, back),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(out)
        os.close(back)
        self.commands, self.answers = os.fdopen(commands, "wb"), os.fdopen(answers, "rb")
        self.count, self.session, self.loaded, self.complaints = 0, None, set(), []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call("Page.setLifecycleEventsEnabled", enabled=True)

    def call(self, method: str, **parameters):
        self.count += 1
        message = {"id": self.count, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        self.commands.write(json.dumps(message).encode() + b"\0")
        self.commands.flush()
        while True:
            answer = self._read()
            if answer.get("id") == self.count:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]

    def _read(self) -> dict:
        letters = bytearray()
        while (letter := self.answers.read(1)) != b"\0":
            if not letter:
                raise RuntimeError("the browser has ended")
            letters += letter
        message = json.loads(letters)
        self._note(message)
        return message

    def _note(self, event: dict) -> None:
        kind, details = event.get("method"), event.get("params", {})
        if kind == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(details["exceptionDetails"])[:500])
        elif kind == "Runtime.consoleAPICalled" and details["type"] in ("error", "warning"):
            self.complaints.append(json.dumps(details["args"])[:500])
        elif kind == "Log.entryAdded" and details["entry"]["level"] in ("error", "warning"):
            self.complaints.append(details["entry"]["text"])
        elif kind == "Page.lifecycleEvent" and details["name"] == "load":
            self.loaded.add(details["loaderId"])

    def open(
        self, path: Path, *, width=1280, height=900, dark=False, script=True, fragment=""
    ) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        shade = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[shade])
        self.call("Emulation.setScriptExecutionDisabled", value=not script)
        # From elsewhere: to change the fragment alone would load nothing.
        for url in ("about:blank", f"{path.resolve().as_uri()}{fragment}"):
            loader = self.call("Page.navigate", url=url).get("loaderId")
            while loader is not None and loader not in self.loaded:
                self._read()

    def run(self, code: str):
        """The value of an expression in the page; a promise is waited for."""
        found = self.call(
            "Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in found:
            raise RuntimeError(json.dumps(found["exceptionDetails"])[:500])
        return found["result"].get("value")

    def show(self, place: str) -> None:
        """Scrolls to an element, and waits until the page has noticed."""
        self.run(f"{place}.scrollIntoView({{block: 'center'}})")
        self.run("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(() => r())))")

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def mouse(self, kind: str, x: float, y: float, *, held=False) -> None:
        button = "left" if held or kind != "mouseMoved" else "none"
        self.call(
            "Input.dispatchMouseEvent",
            type=kind,
            x=x,
            y=y,
            button=button,
            buttons=int(held),
            clickCount=int(kind != "mouseMoved"),
        )

    def screenshot(self, path: str | Path, selector: str | None = None) -> None:
        more = {}
        if selector:
            box = self.run(
                f"(b => [b.left + scrollX, b.top + scrollY, b.width, b.height])"
                f"(document.querySelector({selector!r}).getBoundingClientRect())"
            )
            x, y, width, height = box
            more["clip"] = {"x": x, "y": y, "width": width, "height": height, "scale": 1}
        found = self.call("Page.captureScreenshot", captureBeyondViewport=bool(selector), **more)
        Path(path).write_bytes(base64.b64decode(found["data"]))

    def close(self) -> None:
        self.commands.close()
        self.answers.close()
        self.process.terminate()
        try:
            self.process.wait(SLOWEST)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.profile.cleanup()
