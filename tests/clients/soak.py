#!/usr/bin/env python3
# Many clients stream at once: every stream ends well-formed, nobody starves, memory is flat, and those who stay do not
# notice that others vanish in the middle of a stream.
#
# Called by tests/clients/run.py with PONCHO_URL and PONCHO_PID of a server. PONCHO_SOAK_SECONDS is its length. The
# clients write to raw sockets, so that a client can vanish without a word.
import asyncio
import json
import os
import random
import sys
import time
import urllib.parse
import urllib.request

URL = os.environ["PONCHO_URL"]
PID = int(os.environ["PONCHO_PID"])
SECONDS = float(os.environ.get("PONCHO_SOAK_SECONDS", "15"))
CLIENTS = 64
VANISHING = 10
# A third of the time fills caches and pools. From then on memory may grow by what the allocator keeps for each thread
# until all threads were busy once, some MiB that come ever more slowly, and by no more.
WARM_UP = 1 / 3
MOST_GROWTH = 1.1
SPARE_BYTES = 6 << 20
PATIENCE = 120
HOST = urllib.parse.urlparse(URL)


def resident():
    with open(f"/proc/{PID}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def in_flight():
    page = urllib.request.urlopen(f"{URL}/metrics", timeout=PATIENCE).read().decode()
    return int(next(line.split()[1] for line in page.splitlines() if line.startswith("poncho_http_in_flight ")))


async def begin(number, turn, tokens):
    """Sends a request for a stream and returns the reader and the writer."""
    # Few enough texts that what the engine remembers of them is complete after the warm-up: it is bounded, but large.
    text = f"client {number} asks for the {turn % 16}th time: " + "word " * (number % 40)
    body = json.dumps({
        "model": "stub", "stream": True, "max_tokens": tokens, "ignore_eos": True, "temperature": 1, "seed": number,
        "stream_options": {"include_usage": True}, "messages": [{"role": "user", "content": text}],
    })
    reader, writer = await asyncio.open_connection(HOST.hostname, HOST.port)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {HOST.netloc}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode())
    await writer.drain()
    return reader, writer


async def chunks(reader):
    """The parts of a chunked body, checked."""
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 "), head
    assert b"content-type: text/event-stream" in head.lower(), head
    while True:
        size = int((await reader.readuntil(b"\r\n"))[:-2], 16)
        data = await reader.readexactly(size + 2)
        assert data.endswith(b"\r\n")
        if size == 0:
            return
        yield data[:-2]


def check_stream(text, tokens):
    """A whole stream: a role, deltas, one end, usage, DONE."""
    assert text.endswith("\n\n")
    events = [block.removeprefix("data: ") for block in text.split("\n\n")[:-1] if not block.startswith(":")]
    assert events.pop() == "[DONE]"
    parsed = [json.loads(event) for event in events]
    assert all("error" not in event for event in parsed), parsed
    usage = parsed.pop()
    assert usage["choices"] == [] and usage["usage"]["completion_tokens"] == tokens, usage
    assert parsed[0]["choices"][0]["delta"]["role"] == "assistant"
    assert [event["choices"][0]["finish_reason"] for event in parsed][-1] == "length"
    assert all(event["choices"][0]["finish_reason"] is None for event in parsed[:-1])
    assert len({event["id"] for event in parsed}) == 1


async def stays(number, until, done):
    turn = 0
    while time.monotonic() < until or done[number] == 0:
        tokens = 8 + (number * 7 + turn * 3) % 48
        reader, writer = await begin(number, turn, tokens)
        text = b"".join([part async for part in chunks(reader)]).decode()
        check_stream(text, tokens)
        writer.close()
        done[number] += 1
        turn += 1


async def vanishes(number, until, gone):
    choose = random.Random(number)
    while time.monotonic() < until:
        reader, writer = await begin(number, gone[number], 800)
        seen = 0
        async for _ in chunks(reader):
            seen += 1
            if seen > choose.randint(1, 5):
                break
        # No goodbye: the connection is reset.
        writer.transport.abort()
        gone[number] += 1
        await asyncio.sleep(choose.random() * 0.2)


async def watch(until, samples):
    while time.monotonic() < until:
        samples.append((time.monotonic(), resident()))
        await asyncio.sleep(0.25)


async def main():
    start = time.monotonic()
    until = start + SECONDS
    done, gone, samples = [0] * CLIENTS, [0] * CLIENTS, []
    staying = [stays(number, until, done) for number in range(VANISHING, CLIENTS)]
    leaving = [vanishes(number, until, gone) for number in range(VANISHING)]
    await asyncio.wait_for(asyncio.gather(*staying, *leaving, watch(until, samples)), SECONDS + PATIENCE)
    took = time.monotonic() - start
    deadline = time.monotonic() + PATIENCE
    while in_flight() != 0:
        assert time.monotonic() < deadline, f"{in_flight()} requests are still in flight"
        await asyncio.sleep(0.05)
    streams, least = sum(done), min(done[VANISHING:])
    warm = [size for at, size in samples if at >= start + SECONDS * WARM_UP]
    quarter = max(1, len(warm) // 4)
    early, late = max(warm[:quarter]), max(warm[-quarter:])
    mib = 1 << 20
    print(
        f"soak: {CLIENTS} clients, {took:.1f} s, {streams} whole streams ({least} to {max(done)} a client), "
        f"{sum(gone)} left in the middle, resident memory {early / mib:.1f} MiB after the warm-up, {late / mib:.1f} MiB at the end"
    )
    assert least >= 1, "a client starved"
    assert sum(gone) >= VANISHING, "nobody vanished"
    assert late <= early * MOST_GROWTH + SPARE_BYTES, "memory grew"


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
