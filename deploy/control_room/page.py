"""The control room's page: one HTML document that loads nothing else, and the headers that hold a browser to that.

Style and script are files of their own beside the HTML and are put into it once, when this is imported. The policy names them by
their hashes: nothing else runs, whatever a status or a decision may contain.
"""

import base64
import hashlib
from pathlib import Path

FOLDER = Path(__file__).parent


def _hash(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


_STYLE = (FOLDER / "room.css").read_text()
# The charts are made once the rest is there, and before the first event has come.
_SCRIPT = f'"use strict";\n(() => {{\n{(FOLDER / "room.js").read_text()}{(FOLDER / "charts.js").read_text()}}})();\n'
HTML = (FOLDER / "room.html").read_text().replace("/* room.css */", _STYLE).replace("/* room.js */", _SCRIPT)

PRIVATE = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
HEADERS = {
    **PRIVATE,
    "Content-Security-Policy": "; ".join(
        [
            "default-src 'none'",
            f"script-src {_hash(_SCRIPT)}",
            f"style-src {_hash(_STYLE)}",
            "connect-src 'self'",
            "img-src data:",  # the empty icon
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ]
    ),
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
