"""A headless Chromium that tests drive through a pipe; nothing needs to be installed for it."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
NO_CHROMIUM = "Chromium is not installed; `apt-get install chromium` brings it"
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe"),
)
_PATIENCE_S = 60


class Browser:
    """One page at a time, over the DevTools protocol."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read = write, read
        self._buffer = b""
        self._number = 0
        self._session = ""
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and return its result; events that come meanwhile are kept."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + _PATIENCE_S
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0, end - time.monotonic()))
            assert ready, "Chromium does not answer"
            self._buffer += os.read(self._read, 1 << 20)
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def attach(self) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def open(self, path: Path, *, scripts: bool = True) -> None:
        """Load a page and wait until its scripts have run."""
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def run(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def look(
        self, width: int, height: int = 900, *, dark: bool = False, media: str = "screen"
    ) -> None:
        """Set size, colours and medium."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)

    def screenshot(self, path: Path) -> None:
        """Draw the whole page."""
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def pdf(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.printToPDF")["data"]))

    def complaints(self) -> list[Any]:
        """Return errors and warnings of the console since the page was opened."""
        self.run("0")
        wrong = {"Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled"}
        return [event["params"] for event in self.events if event.get("method") in wrong]

    def requests(self) -> list[str]:
        """Return the addresses that the page asked for since it was opened."""
        sent = "Network.requestWillBeSent"
        urls = [e["params"]["request"]["url"] for e in self.events if e.get("method") == sent]
        return [url for url in urls if not url.startswith("data:")]


@contextlib.contextmanager
def start_chromium(folder: Path) -> Iterator[Browser]:
    """Yield a browser with a profile folder of its own; it ends with the block."""
    assert CHROMIUM is not None
    to_read, write = os.pipe()
    read, to_write = os.pipe()
    # Chromium reads commands from descriptor 3 and answers on 4.
    script = f'exec "$@" 3<&{to_read} 4>&{to_write}'
    command = ["bash", "-c", script, "-", CHROMIUM, *_FLAGS, f"--user-data-dir={folder}"]
    process = subprocess.Popen(
        command,
        pass_fds=(to_read, to_write),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_read)
    os.close(to_write)
    try:
        browser = Browser(write, read)
        browser.attach()
        yield browser
        browser._session = ""
        browser.call("Browser.close")
        process.wait(20)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(write)
        os.close(read)
