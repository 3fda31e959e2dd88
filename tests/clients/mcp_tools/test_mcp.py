"""The official Python SDK of MCP: `poncho mcp` over both transports and both ways to connect, each tool's result.

Run by pytest from tests/clients/run.py, which starts the servers that the tools ask. The SDK checks every structured result against the schema that the tool announced.
"""
import asyncio
import contextlib
import os
import signal
import subprocess
import time

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

BINARY, MODEL, URL = os.environ["PONCHO_BINARY"], os.environ["PONCHO_MODEL"], os.environ["PONCHO_URL"]
LOCKED_URL, KEY = os.environ["PONCHO_LOCKED_URL"], os.environ["PONCHO_KEY"]
PATIENCE = 300.0
SYSTEM = "You are a terse assistant of a test that a client of MCP runs, and you speak of weather alone. "
TOOLS = ["explain", "requests", "cache", "models", "ask"]


def started_by_client(url, *more):
    return StdioServerParameters(command=BINARY, args=["mcp", "--url", url, *more])


@contextlib.contextmanager
def listening(url, *more):
    """`poncho mcp --listen`, ended with SIGTERM; it must exit with 0."""
    command = [BINARY, "mcp", "--listen", "127.0.0.1:0", "--url", url, *more]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        address = line.split()[-1]
        assert address.startswith("http://127.0.0.1:") and address.endswith("/mcp"), line
        yield address
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module", params=["stdio", "http"])
def server(request):
    if request.param == "stdio":
        yield started_by_client(URL)
    else:
        with listening(URL) as address:
            yield address


def session(server, test, mode="auto"):
    """Runs a test with a client of the server."""
    async def run():
        async with Client(server, mode=mode, read_timeout_seconds=PATIENCE) as client:
            return await test(client)

    return asyncio.run(asyncio.wait_for(run(), PATIENCE))


async def call(client, name, **arguments):
    result = await client.call_tool(name, arguments)
    assert not result.is_error, f"{name}: {result.content[0].text}"
    return result.structured_content


async def ended(client, limit):
    """The last requests, when all of them have ended: a server notes the end after the reply."""
    deadline = time.monotonic() + 60
    while True:
        seen = (await call(client, "requests", limit=limit))["requests"]
        if all(request["stage"] == "ended" for request in seen):
            return seen
        assert time.monotonic() < deadline, seen
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_the_tools_are_listed_with_schemas(server, mode):
    async def test(client):
        listed = (await client.list_tools()).tools
        assert [tool.name for tool in listed] == TOOLS
        for tool in listed:
            assert tool.description and tool.input_schema["type"] == "object" and tool.output_schema["type"] == "object"
            assert tool.annotations.read_only_hint is True
        assert client.server_info.name == "poncho" and "explain" in client.instructions

    session(server, test, mode)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_an_agent_finds_out_why_a_prompt_is_read_again(server, mode):
    # Words of its own, so that no other test has computed them.
    def system_with(words):
        return f"{mode} {type(server).__name__} " + SYSTEM * 3 + words + SYSTEM

    system = system_with("")

    async def test(client):
        first = await call(client, "ask", prompt="Rain?", system=system, max_tokens=4, temperature=0)
        assert first["model"] == MODEL and first["text"] and first["generated_tokens"] <= 4
        again = await call(client, "ask", prompt="Rain?", system=system, max_tokens=4, temperature=0, model=MODEL)
        assert again["cached_tokens"] >= first["prompt_tokens"] - 1 and again["text"]

        await call(client, "ask", prompt="Rain?", system=system_with("Changed. "), max_tokens=1)
        newest, *_ = await ended(client, 1)
        assert newest["model"] == MODEL and newest["new_tokens"] + newest["cached_tokens"] == newest["prompt_tokens"]
        assert newest["new_tokens"] > 20 and newest["why"]["cause"] and newest["why"]["reason"]

        why = await call(client, "explain", id=newest["id"])
        assert why["tokens"] == newest["prompt_tokens"] and why["found"] == newest["cached_tokens"], why
        assert why["cause"] == newest["why"]["cause"] and why["reason"] == newest["why"]["reason"], why

        messages = [{"role": "system", "content": system}, {"role": "user", "content": "Rain?"}]
        same = await call(client, "explain", messages=messages)
        assert same["usable"] >= first["prompt_tokens"] - 1 and same["lost"] == 0
        body = {"model": MODEL, "max_tokens": 1, "system": system_with("Other. "), "messages": messages[1:]}
        other = await call(client, "explain", body=body)
        assert other["lost"] > 10 and other["message"] == {"number": 1, "role": "system"}, other
        assert "Other" in other["asked"]["after"] and other["fix"], other
        assert (await call(client, "explain", text="a text of this test alone"))["tokens"] > 3

    session(server, test, mode)


def test_the_cache_and_the_models_are_shown(server):
    async def test(client):
        await call(client, "ask", prompt="Snow?", system=SYSTEM * 4, max_tokens=1)
        cache = await call(client, "cache", rows=5)
        assert {tier["tier"] for tier in cache["tiers"]} >= {"ram", "disk"}
        assert all(tier["bytes"] <= tier["quota"] or not tier["on"] for tier in cache["tiers"])
        assert cache["rows"] >= 1 and 1 <= len(cache["listed"]) <= 5 and cache["listed"][0]["tokens"] > 0
        [saved] = [saved for saved in cache["savings"] if saved["model"] == MODEL]
        assert saved["requests"] >= 1 and saved["new_tokens"] > 0 and cache["since"]
        [model] = (await call(client, "models"))["models"]
        assert model["name"] == MODEL and model["loaded"] and model["context_length"] > 0
        assert "completion" in model["capabilities"] and model["architecture"] == "llama"

    session(server, test)


def test_wrong_arguments_are_errors_of_the_tool(server):
    async def test(client):
        for name, arguments, part in [
            ("explain", {}, "give one of"), ("ask", {"prompt": "x", "temperature": -1}, "temperature"),
            ("requests", {"limit": 999}, "from 1 to 50"), ("cache", {"rows": -1}, "rows"),
            ("ask", {"prompt": "word " * 9000}, "context"),
        ]:
            result = await client.call_tool(name, arguments)
            assert result.is_error and part in result.content[0].text, f"{name}: {result}"

    session(server, test)


@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_a_server_that_is_not_there_is_an_error_of_the_tool(transport):
    async def test(client):
        for name in TOOLS:
            arguments = {"explain": {"text": "x"}, "ask": {"prompt": "x"}}.get(name, {})
            result = await client.call_tool(name, arguments)
            assert result.is_error and "cannot reach the server at 127.0.0.1:9" in result.content[0].text, result
            assert "poncho serve" in result.content[0].text

    nobody = "http://127.0.0.1:9"
    if transport == "stdio":
        session(started_by_client(nobody), test)
    else:
        with listening(nobody) as address:
            session(address, test)


def test_a_key_is_used_and_asked_for():
    async def test(client):
        assert (await call(client, "models"))["models"][0]["name"] == MODEL

    session(started_by_client(LOCKED_URL, "--api-key", KEY), test)
    with listening(LOCKED_URL, "--api-key", KEY) as address:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": f"Bearer {KEY}", "origin": "http://x.test"}):
            answer = httpx2.post(address, json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"}, headers={
                "accept": "application/json, text/event-stream", **headers})
            assert answer.status_code == (403 if "origin" in headers else 401), headers
        with_key = httpx2.AsyncClient(headers={"authorization": f"Bearer {KEY}"}, timeout=PATIENCE)
        session(streamable_http_client(address, http_client=with_key), test)


def test_the_program_ends_when_its_client_goes():
    process = subprocess.Popen([BINARY, "mcp", "--url", URL], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    out, _ = process.communicate(b"", timeout=60)
    assert process.returncode == 0 and out == b"", "nothing but the protocol goes to standard output"
