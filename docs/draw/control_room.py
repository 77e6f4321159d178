"""``python -m docs.draw.control_room``: pictures of the control room, from a running service (``make serve``) under load.

It sends the service calm, a burst and calm again, and takes docs/pictures/control-{light,dark,phone}.png. Needs Chromium.
"""

import argparse
import asyncio
import sys
import time
from pathlib import Path

import httpx

from docs.draw.browser import browser_page
from docs.draw.style import PICTURES

CALM_PER_S, TOKENS = 1.0, 32
PROMPT = "Once upon a time there was a king who had three daughters. "
LOOKING_S = 30.0  # that the pictures take: there is load until then


async def load(url: str, model: str, phases: list[tuple[float, float]]) -> None:
    """Send completions that nobody waits for before the next is sent, in phases of (seconds, requests/s)."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False, limits=limits) as client:
        sent: list[asyncio.Task[httpx.Response]] = []
        due_s = time.monotonic()
        for lasts_s, per_s in phases:
            for _ in range(int(lasts_s * per_s)):
                await asyncio.sleep(max(0.0, due_s - time.monotonic()))
                body = {"model": model, "prompt": f"{len(sent)} {PROMPT}", "max_tokens": TOKENS, "stream": True}
                sent.append(asyncio.create_task(client.post("/v1/completions", json=body)))
                due_s += 1 / per_s
        answers = await asyncio.gather(*sent, return_exceptions=True)
    good = sum(isinstance(each, httpx.Response) and each.status_code == 200 for each in answers)
    print(f"{good} of {len(answers)} requests answered")


def draw(url: str, folder: Path = PICTURES) -> list[Path]:
    """Take the pictures; returns their paths.

    Raises:
        RuntimeError: the page's console holds errors.
    """
    looks = {
        "light": {"width": 1280},
        "dark": {"width": 1280, "dark": True},
        "phone": {"width": 390, "phone": True, "scale": 1.5},
    }
    paths = []
    with browser_page() as page:
        page.send("Emulation.setScrollbarsHidden", hidden=True)
        for name, look in looks.items():
            page.look(height=900, **look)
            page.open(f"{url}/control")
            page.wait_for(
                "document.querySelectorAll('#replicas tr').length > 0 && !document.querySelector('#room').hidden"
            )
            page.look(height=page.evaluate("document.documentElement.scrollHeight"), **look)
            time.sleep(2)  # some ticks at this size
            paths.append(folder / f"control-{name}.png")
            page.picture(paths[-1])
        if page.faults:
            raise RuntimeError(f"the page's console holds errors: {page.faults}")
    return paths


async def draw_under_load(url: str, calm_s: float, burst_s: float, burst_per_s: float) -> list[Path]:
    """Take the pictures at the end of calm, a burst and calm."""
    async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
        model = (await client.get("/v1/models")).json()["data"][0]["id"]
    calm = (calm_s, CALM_PER_S)
    sending = asyncio.create_task(load(url, model, [calm, (burst_s, burst_per_s), calm, (LOOKING_S, CALM_PER_S)]))
    await asyncio.sleep(2 * calm_s + burst_s)
    paths = await asyncio.to_thread(draw, url)
    await sending
    return paths


def main(argv: list[str] | None = None) -> int:
    """Run it; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m docs.draw.control_room", description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--calm-s", type=float, default=100, help="before and after the burst (default: %(default)s)")
    parser.add_argument("--burst-s", type=float, default=30, help="(default: %(default)s)")
    parser.add_argument("--burst-per-s", type=float, default=8, help="requests/s in it (default: %(default)s)")
    args = parser.parse_args(argv)
    for path in asyncio.run(draw_under_load(args.url, args.calm_s, args.burst_s, args.burst_per_s)):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
