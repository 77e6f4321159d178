"""The OpenAPI document: the routes that exist, and nothing that is loaded from elsewhere."""

import asyncio
import json

from fastapi import FastAPI
from pydantic import BaseModel

from deploy.front.routes import openapi


class Asked(BaseModel):
    prompt: str


app = FastAPI()


@app.post("/v1/completions")
def complete(asked: Asked) -> str:
    return asked.prompt


@app.post("/sleep")
def sleep() -> None:
    """A route that the front does not have."""


def test_it_names_the_routes_that_exist_with_their_fields_and_refusals():
    found = openapi.document(app, ["/v1/completions"])
    assert set(found["paths"]) == {"/v1/completions"}
    operation = found["paths"]["/v1/completions"]["post"]
    assert set(operation["responses"]) == {"200", "400", "408", "413", "415", "429", "503"}
    assert found["components"]["schemas"]["Asked"]["required"] == ["prompt"]


def test_the_page_is_json_that_is_made_once():
    page = openapi.page(app, ["/v1/completions"])
    first, second = asyncio.run(page()), asyncio.run(page())
    assert first.content_type == "application/json"
    assert first.body is second.body
    assert json.loads(first.body)["openapi"].startswith("3.")
