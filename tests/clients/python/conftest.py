"""What the tests of clients share: the servers that tests/clients/run.py started, and a client of each SDK.

Called by pytest. The addresses come from the environment; nothing here starts or stops a server.
"""
import os
import time
import urllib.request

import anthropic
import ollama
import openai
import pytest

MODEL = os.environ["PONCHO_MODEL"]
URL = os.environ["PONCHO_URL"]
# Replies there are the same bytes each time, whatever else is going on: for tests that compare two of them.
EXACT_URL = os.environ["PONCHO_EXACT_URL"]
LOCKED_URL = os.environ["PONCHO_LOCKED_URL"]
KEY = os.environ["PONCHO_KEY"]
PATIENCE = 300.0

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "unit": {"enum": ["c", "f"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
CLOCK = {
    "type": "object",
    "properties": {"zone": {"enum": ["utc", "local"]}},
    "required": ["zone"],
    "additionalProperties": False,
}
CAT = {
    "type": "object",
    "properties": {"legs": {"type": "integer", "minimum": 0, "maximum": 9}, "tail": {"type": "boolean"}},
    "required": ["legs", "tail"],
    "additionalProperties": False,
}


@pytest.fixture(scope="session")
def oai():
    return openai.OpenAI(base_url=f"{URL}/v1", api_key="any", max_retries=0, timeout=PATIENCE)


@pytest.fixture(scope="session")
def claude():
    return anthropic.Anthropic(base_url=URL, api_key="any", max_retries=0, timeout=PATIENCE)


@pytest.fixture(scope="session")
def llama():
    return ollama.Client(host=URL, timeout=PATIENCE)


@pytest.fixture(scope="session")
def exact_oai():
    return openai.OpenAI(base_url=f"{EXACT_URL}/v1", api_key="any", max_retries=0, timeout=PATIENCE)


@pytest.fixture(scope="session")
def exact_claude():
    return anthropic.Anthropic(base_url=EXACT_URL, api_key="any", max_retries=0, timeout=PATIENCE)


@pytest.fixture(scope="session")
def exact_llama():
    return ollama.Client(host=EXACT_URL, timeout=PATIENCE)


def user(text):
    return [{"role": "user", "content": text}]


def metric(name):
    """The value of a metric without labels, or the sum over its labels."""
    page = urllib.request.urlopen(f"{URL}/metrics", timeout=30).read().decode()
    values = [line.rsplit(" ", 1)[1] for line in page.splitlines() if line.split("{")[0].split(" ")[0] == name]
    assert values, f"{name} is not on the page:\n{page}"
    return sum(float(value) for value in values)


def until_idle():
    """Waits until no request is in flight."""
    deadline = time.monotonic() + 60
    while metric("poncho_http_in_flight") != 0:
        assert time.monotonic() < deadline, "requests are still in flight"
        time.sleep(0.05)
