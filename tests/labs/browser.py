"""Chromium without a window, spoken to over two pipes by its DevTools protocol: one start for many pages."""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--host-resolver-rules=MAP * ~NOTFOUND",  # the browser's own calls home go nowhere either
)
A4_INCHES = (8.27, 11.69)
PRINTED_WIDTH = 688  # pixels of an A4 page between margins of 14 mm
LIMIT_S = 60.0

Message = dict[str, Any]


class BrowserError(RuntimeError):
    """The browser refused a call, or did not answer in time."""


class Browser:
    """A running Chromium with one page. `events` are what it told since the last `open`; use it in a ``with``."""

    def __init__(self, home: Path) -> None:
        assert PROGRAM is not None
        from_browser, to_us = os.pipe()
        from_us, to_browser = os.pipe()
        self._in = from_browser
        self._out = to_browser
        self._buffer = b""
        self._calls = 0
        self.events: list[Message] = []
        # The protocol's pipes are the descriptors 3 and 4.
        start = ["bash", "-c", f'exec "$@" 3<&{from_us} 4>&{to_us}', "browser", PROGRAM, *FLAGS]
        start += ["--remote-debugging-pipe", f"--user-data-dir={home / 'profile'}"]
        with (home / "browser.log").open("wb") as log:
            self._process = subprocess.Popen(
                start,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(from_us, to_us),
                env={**os.environ, "HOME": str(home)},
            )
        os.close(from_us)
        os.close(to_us)
        self._session = ""
        page = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait(timeout=LIMIT_S)
        os.close(self._in)
        os.close(self._out)

    def call(self, method: str, **parameters: Any) -> Message:
        """Return the browser's answer to a call of its protocol.

        Raises:
            BrowserError: it refused the call, or did not answer in time.
        """
        self._calls += 1
        number = self._calls
        message: Message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") != number:
                self.events.append(answer)
            elif "error" in answer:
                raise BrowserError(f"{method}: {answer['error']}")
            else:
                result: Message = answer["result"]
                return result

    def _next(self) -> Message:
        """Return the next message of the browser."""
        deadline = time.monotonic() + LIMIT_S
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(deadline - time.monotonic(), 0))
            part = os.read(self._in, 2**20) if ready else b""
            if not part:
                raise BrowserError("the browser does not answer")
            self._buffer += part
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: Message = json.loads(text)
        return message

    def open(self, page: Path) -> None:
        """Load `page` and wait until all of it is there; `events` are of this page then."""
        self.events.clear()
        self.call("Page.navigate", url=page.as_uri())
        while not self._has("Page.loadEventFired"):
            self.events.append(self._next())

    def _has(self, method: str) -> bool:
        return any(event.get("method") == method for event in self.events)

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page; a promise's when it is kept."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise BrowserError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def show(self, width: int, *, height: int = 900, dark: bool = False, media: str = "screen") -> None:
        """Let the page have a window of `width` pixels, in the dark or not, on the `media` screen or print."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def press(self, key: str, code: int) -> None:
        """Press and release a key by its name and its Windows code, such as Escape, 27."""
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def picture(self, file: Path, *, whole: bool = True) -> None:
        """Write the page as a PNG: the `whole` of it, or what the window shows."""
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(answer["data"]))

    def printed(self) -> bytes:
        """Return the page as a PDF on A4."""
        self.call("Emulation.setEmulatedMedia", media="", features=[])
        width, height = A4_INCHES
        answer = self.call("Page.printToPDF", paperWidth=width, paperHeight=height, preferCSSPageSize=True)
        return base64.b64decode(answer["data"])

    def errors(self) -> list[str]:
        """Return what the page wrote to the console or raised since it was opened."""
        texts = []
        for event in self.events:
            parameters: Mapping[str, Any] = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                texts.append(str(parameters["exceptionDetails"]))
            elif event.get("method") == "Log.entryAdded":
                texts.append(parameters["entry"]["text"])
            elif event.get("method") == "Runtime.consoleAPICalled":
                texts.append(str(parameters["args"]))
        return texts

    def requests(self) -> list[str]:
        """Return the addresses that the page asked for beside its own, since it was opened."""
        addresses = [
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent" and event["params"].get("type") != "Document"
        ]
        return [address for address in addresses if not address.startswith("data:")]
