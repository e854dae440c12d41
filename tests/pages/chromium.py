"""A page in headless Chromium, asked through its DevTools protocol."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from patience import PATIENCE_S, wait_until

_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--window-size=800,1000", "--disable-sync", "--remote-debugging-port=0", "--remote-allow-origins=*"),
)
#: Seconds between two looks.
_LOOK_S = 0.1


class OpenPage:
    """A page that was loaded."""

    def __init__(self, address: str) -> None:
        self.address = address

    def ask(self, script: str) -> Any:
        """The value of an expression of JavaScript; None while one page takes the place of another."""
        answer = asyncio.run(self._call("Runtime.evaluate", {"expression": script, "returnByValue": True}))
        if "error" in answer:
            return None
        assert "exceptionDetails" not in answer["result"], answer
        return answer["result"]["result"].get("value")

    def wait_for(self, script: str, value: Any) -> None:
        """Wait until an expression has a value."""
        wait_until(lambda: self.ask(script) == value, f"{script} is {value!r}", _LOOK_S)

    def press(self, key: str) -> None:
        """Press a key, as a person does: a letter, or Enter."""
        code, text = (13, "\r") if key == "Enter" else (ord(key.upper()), key)
        for kind in ("keyDown", "keyUp"):
            shown = {"text": text} if kind == "keyDown" else {}
            event = {"type": kind, "key": key, "windowsVirtualKeyCode": code, **shown}
            asyncio.run(self._call("Input.dispatchKeyEvent", event))

    async def _call(self, method: str, params: dict[str, Any]) -> Any:
        async with aiohttp.ClientSession() as session, session.ws_connect(self.address, max_msg_size=0) as socket:
            await socket.send_json({"id": 1, "method": method, "params": params})
            while (answer := await socket.receive_json()).get("id") != 1:
                pass
        return answer


@contextmanager
def opened(page: Path | str, folder: Path) -> Iterator[OpenPage]:
    """A file, or an address, in a browser with a profile of its own; the test is skipped where there is none."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no Chromium")
    profile = folder / "profile"
    address = page.as_uri() if isinstance(page, Path) else page
    command = [program, *_FLAGS, f"--user-data-dir={profile}", address]
    browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        scheme = address.partition(":")[0]
        tab = OpenPage(asyncio.run(_address(profile / "DevToolsActivePort", scheme)))
        # The empty document that a browser begins with is complete too, and is listed under the page's address.
        tab.wait_for("location.protocol + document.readyState", f"{scheme}:complete")
        yield tab
    finally:
        browser.terminate()
        browser.wait(PATIENCE_S)


async def _address(port_file: Path, scheme: str) -> str:
    end = time.monotonic() + PATIENCE_S
    async with aiohttp.ClientSession() as session:
        while time.monotonic() < end:
            if port_file.exists() and (lines := port_file.read_text().splitlines()):
                async with session.get(f"http://127.0.0.1:{lines[0]}/json") as answer:
                    pages = [target for target in await answer.json() if target["type"] == "page"]
                if pages and pages[0]["url"].startswith(f"{scheme}:"):
                    return str(pages[0]["webSocketDebuggerUrl"])
            await asyncio.sleep(_LOOK_S)
    raise TimeoutError("Chromium did not open the page")
