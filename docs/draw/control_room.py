"""``python -m docs.draw.control_room``: pictures of the control room, from a running service (``make serve``) under load.

It sends the service calm, a burst and calm again, then takes docs/pictures/control-{light,dark,phone}.png. Needs Chromium.
"""

import argparse
import asyncio
import sys
import time
from pathlib import Path

import httpx

from docs.draw.browser import browser_page
from docs.draw.style import PICTURES

CALM_PER_S, CALM_TOKENS, BURST_TOKENS = 2.0, 32, 64
PROMPT = "Once upon a time there was a king who had three daughters. "


async def load(url: str, model: str, calm_s: float, burst_s: float, burst_per_s: float) -> None:
    """Send calm, a burst and calm again: completions that nobody waits for before the next is sent."""
    async with httpx.AsyncClient(
        base_url=url, timeout=120, trust_env=False, limits=httpx.Limits(max_connections=None)
    ) as client:
        sent = set()
        began_s = time.monotonic()
        phases = [
            (calm_s, CALM_PER_S, CALM_TOKENS),
            (burst_s, burst_per_s, BURST_TOKENS),
            (calm_s, CALM_PER_S, CALM_TOKENS),
        ]
        due_s = 0.0
        for lasts_s, per_s, tokens in phases:
            for number in range(int(lasts_s * per_s)):
                await asyncio.sleep(max(0.0, began_s + due_s + number / per_s - time.monotonic()))
                body = {"model": model, "prompt": f"{len(sent)} {PROMPT}", "max_tokens": tokens, "stream": True}
                task = asyncio.create_task(client.post("/v1/completions", json=body))
                sent.add(task)
            due_s += lasts_s
        answers = await asyncio.gather(*sent, return_exceptions=True)
    good = sum(isinstance(each, httpx.Response) and each.status_code == 200 for each in answers)
    print(f"{good} of {len(answers)} requests answered")


def draw(url: str, folder: Path = PICTURES) -> list[Path]:
    """Take the pictures; returns their paths."""
    looks = {
        "light": {"width": 1280, "height": 1010},
        "dark": {"width": 1280, "height": 1010, "dark": True},
        "phone": {"width": 390, "height": 1560, "phone": True, "scale": 1.5},
    }
    paths = []
    with browser_page() as page:
        for name, look in looks.items():
            page.look(**look)
            page.open(f"{url}/control")
            page.wait_for(
                "document.querySelectorAll('#replicas tr').length > 0 && !document.querySelector('#room').hidden"
            )
            time.sleep(3)  # some ticks, so that every replica's share in the SLO is there
            paths.append(folder / f"control-{name}.png")
            page.picture(paths[-1])
        if page.faults:
            raise RuntimeError(f"the page's console holds errors: {page.faults}")
    return paths


def main(argv: list[str] | None = None) -> int:
    """Run it; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m docs.draw.control_room", description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--calm-s", type=float, default=75, help="before and after the burst (default: %(default)s)")
    parser.add_argument("--burst-s", type=float, default=60, help="(default: %(default)s)")
    parser.add_argument("--burst-per-s", type=float, default=6, help="requests/s in it (default: %(default)s)")
    args = parser.parse_args(argv)
    model = httpx.get(f"{args.url}/v1/models", trust_env=False).json()["data"][0]["id"]
    asyncio.run(load(args.url, model, args.calm_s, args.burst_s, args.burst_per_s))
    for path in draw(args.url):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
