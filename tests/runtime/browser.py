"""A headless Chromium that tests look at pages with, by the protocol of its developer tools."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
LIMIT = 30.0  # seconds for anything


class Browser:
    """One page; `errors` is what its console complained about."""

    def __init__(self, width: int = 1500, height: int = 1250) -> None:
        self.folder = tempfile.mkdtemp(prefix="ostinato-browser-")
        self.log = Path(self.folder) / "log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [
                    str(CHROMIUM),
                    *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
                    *("--remote-debugging-port=0", "--remote-debugging-address=127.0.0.1"),
                    *(f"--user-data-dir={self.folder}", f"--window-size={width},{height}"),
                    "--no-first-run",
                    "about:blank",
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )
        self.loop = asyncio.new_event_loop()
        self.errors: list[str] = []
        self.number = 0
        self.line: Any = None

    def __enter__(self) -> Browser:
        try:
            self.loop.run_until_complete(asyncio.wait_for(self._connect(), LIMIT))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        if self.line is not None:
            self.loop.run_until_complete(self._leave())
        self.loop.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(LIMIT)
        shutil.rmtree(self.folder, ignore_errors=True)

    async def _connect(self) -> None:
        from tornado.httpclient import AsyncHTTPClient
        from tornado.websocket import websocket_connect

        found = None
        while found is None:
            found = re.search(r"ws://(127\.0\.0\.1:\d+)/", self.log.read_text(errors="replace"))
            await asyncio.sleep(0.05)
        pages = await AsyncHTTPClient(force_instance=True).fetch(f"http://{found[1]}/json/list")
        page = next(p for p in json.loads(pages.body) if p["type"] == "page")
        self.line = await websocket_connect(page["webSocketDebuggerUrl"], max_message_size=1 << 28)
        for domain in ("Page", "Runtime", "Log"):
            await self._ask(f"{domain}.enable")

    async def _leave(self) -> None:
        """Inside the loop: outside of it, Tornado makes one more, which nobody closes."""
        self.line.close()
        await asyncio.sleep(0.05)

    async def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        self.number += 1
        await self.line.write_message(
            json.dumps({"id": self.number, "method": method, "params": params})
        )
        while True:
            text = await self.line.read_message()
            assert text is not None, "the browser is gone"
            said = json.loads(text)
            self._look(said)
            if said.get("id") == self.number:
                assert "error" not in said, said
                return dict(said["result"])

    def _look(self, said: dict[str, Any]) -> None:
        """Keep what is an error."""
        what, params = said.get("method"), said.get("params", {})
        if what == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(params["exceptionDetails"])[:2000])
        elif what == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"):
            self.errors.append(json.dumps(params["args"])[:2000])
        elif what == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(json.dumps(params["entry"])[:2000])

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        return self.loop.run_until_complete(asyncio.wait_for(self._ask(method, **params), LIMIT))

    # -- for tests -------------------------------------------------------------------------
    def open(self, address: str) -> None:
        self.ask("Page.navigate", url=address)

    def value(self, script: str) -> Any:
        """What an expression is in the page."""
        return self.ask("Runtime.evaluate", expression=script, returnByValue=True)["result"].get(
            "value"
        )

    def until(self, script: str, limit: float = LIMIT) -> Any:
        """Its value, as soon as that is true."""
        end = time.monotonic() + limit
        while not (found := self.value(script)):
            assert time.monotonic() < end, f"{script} stays {found!r}: {self.text()[:2000]}"
            time.sleep(0.1)
        return found

    def text(self) -> str:
        """All that can be read on the page, in the parts that models of Bokeh hide, too."""
        return str(self.value(_TEXT))

    def click(self, text: str) -> None:
        """Where this stands."""
        x, y = self.until(_PLACE.replace("TEXT", json.dumps(text)))
        for kind in ("mousePressed", "mouseReleased"):
            self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def screenshot(self, path: str | Path) -> None:
        Path(path).write_bytes(base64.b64decode(self.ask("Page.captureScreenshot")["data"]))


_PLACE = """(() => {
  const seek = node => {
    for (const inner of [...(node.shadowRoot ? node.shadowRoot.childNodes : []), ...node.childNodes]) {
      if (inner.nodeType === 3 && inner.data.trim() === TEXT) {
        const box = inner.parentElement.getBoundingClientRect();
        return [box.x + box.width / 2, box.y + box.height / 2];
      }
      const found = seek(inner);
      if (found) return found;
    }
  };
  return seek(document.body);
})()"""
_TEXT = """(() => {
  const read = node => node.nodeType === 3 ? node.data
    : ["STYLE", "SCRIPT"].includes(node.nodeName) ? ""
    : [...(node.shadowRoot ? node.shadowRoot.childNodes : []), ...node.childNodes].map(read).join(" ");
  return read(document.body).replace(/\\s+/g, " ");
})()"""
