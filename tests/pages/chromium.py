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

_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-sync", "--remote-debugging-port=0", "--remote-allow-origins=*"),
)
#: Seconds to wait for the browser, and between two looks.
_PATIENCE_S, _LOOK_S = 60, 0.1


class OpenPage:
    """A page that was loaded."""

    def __init__(self, address: str) -> None:
        self.address = address

    def ask(self, script: str) -> Any:
        """The value of an expression of JavaScript."""
        return asyncio.run(self._call("Runtime.evaluate", {"expression": script, "returnByValue": True}))

    async def _call(self, method: str, params: dict[str, Any]) -> Any:
        async with aiohttp.ClientSession() as session, session.ws_connect(self.address, max_msg_size=0) as socket:
            await socket.send_json({"id": 1, "method": method, "params": params})
            while (answer := await socket.receive_json()).get("id") != 1:
                pass
        result = answer["result"]
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")


@contextmanager
def opened(page: Path, folder: Path) -> Iterator[OpenPage]:
    """The page in a browser with a profile of its own; the test is skipped where there is none."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no Chromium")
    profile = folder / "profile"
    command = [program, *_FLAGS, f"--user-data-dir={profile}", page.as_uri()]
    browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        found = OpenPage(asyncio.run(_address(profile / "DevToolsActivePort")))
        end = time.monotonic() + _PATIENCE_S
        while found.ask("document.readyState") != "complete":
            assert time.monotonic() < end
            time.sleep(_LOOK_S)
        yield found
    finally:
        browser.terminate()
        browser.wait(30)


async def _address(port_file: Path) -> str:
    end = time.monotonic() + _PATIENCE_S
    async with aiohttp.ClientSession() as session:
        while time.monotonic() < end:
            if port_file.exists() and (lines := port_file.read_text().splitlines()):
                async with session.get(f"http://127.0.0.1:{lines[0]}/json") as answer:
                    pages = [one for one in await answer.json() if one["type"] == "page"]
                if pages and pages[0]["url"].startswith("file:"):
                    return str(pages[0]["webSocketDebuggerUrl"])
            await asyncio.sleep(_LOOK_S)
    raise TimeoutError("Chromium did not open the page")
