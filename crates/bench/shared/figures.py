#!/usr/bin/env python3
# Measures the shared cache with the real binary, SmolLM2, SeaweedFS and a proxy that fails on purpose.
#
# Called by `make shared-figures`; words on the command line choose some of the parts: remote, rounds, faults, return.
# Servers that are compared run side by side and answer in turn, so that a busy machine is as busy for both. The process
# fails if a reply differs or a server reports an error. A target that is missed is printed as such.
import math
import os
import pathlib
import statistics
import sys
import tempfile
import threading
import time

from faults import Proxy
from servers import Server, Store, Weed, until

# Prompts of each kind. All of them have other first tokens, so that none is the beginning of another one.
LONG = int(os.environ.get("SHARED_LONG", "7"))
SHORT = int(os.environ.get("SHARED_SHORT", "10"))
# Prompts below 512 tokens are not stored.
LONG_TOKENS, SHORT_TOKENS = 2000, 600
LENGTHS = [1, 8, 32, 96]
# A store is another machine. Here it and its proxy need a CPU of their own: threads on all of them would wait for it.
BESIDE_A_STORE = max(1, os.cpu_count() - 1)
# Before each timed step: a server that has answered still writes what it saves, and that must not slow down another step.
QUIET = 1.5
WORDS = "the store keeps what one machine has read and another machine finds it again by its tokens ".split()

FAULTS = [
    ("none, for comparison", None),
    ("1 MB/s", ("slow", 1e6)),
    ("5 s of latency", ("latency", 5)),
    ("black hole", ("black hole", 0)),
    ("status 500", ("status", 500)),
    ("resets", ("reset", 0)),
    ("truncated bodies", ("truncated", 100_000)),
    ("wrong bytes", ("wrong bytes", 0)),
    ("full bucket", ("full", 507)),
]


def words(count, seed):
    """Sentences without much repetition, different for each seed."""
    state, chosen = seed * 7919 + 1, []
    for _ in range(count):
        state = (state * 1103515245 + 12345) % (1 << 31)
        chosen.append(WORDS[(state >> 8) % len(WORDS)])
    return f"{seed} " + " ".join(chosen)


def prompt(server, tokens, seed):
    return server.tokens(words(2 * tokens, seed))[:tokens]


def ninety_fifth(values):
    return sorted(values)[math.ceil(0.95 * len(values)) - 1]


def spread(values, unit="ms", scale=1000):
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle * scale:.0f} {unit} ({low * scale:.0f} to {high * scale:.0f})"


def verdict(good):
    return "ok" if good else "MISSED"


def warm(folder, endpoint, prompts, threads=os.cpu_count()):
    """Computes prompts on a machine of its own until the store has them; returns the replies, computed and restored.

    They may differ: the last token of a prompt is computed with others or alone, and that changes bits.
    """
    machine = Server("a", folder, endpoint, threads=threads)
    asked = prompts(machine)
    replies = [Replies(machine.ask(one)[1], machine.ask(one)[1]) for one in asked]
    machine.until_uploaded(len(asked))
    machine.stop()
    return asked, replies


class Replies:
    def __init__(self, computed, restored):
        self.computed, self.restored = computed, restored

    def check(self, what, text, facts):
        expected = self.restored if facts["cached_tokens"] > 8 else self.computed
        if text != expected:
            sys.exit(f"{what}: another reply: {text!r}, {expected!r}; {facts}")


def remote(folder):
    """Warm on A, restored on B: beside a plain GET of the same bytes and a restore from memory, and beside computing."""
    weed = Weed(folder / "weed")
    endpoint = f"http://127.0.0.1:{weed.ports[0]}"
    asked, replies = warm(folder, endpoint, lambda one: [prompt(one, LONG_TOKENS, 100 + n) for n in range(LONG)])
    store = Store(endpoint)
    rows = [row for row in store.rows() if row["tokens"] == LONG_TOKENS]
    machine, cold = Server("b", folder, endpoint), Server("cold", folder)
    for server in (machine, cold):
        server.ask(prompt(server, 600, 1))
    taken = {"remote": [], "get": [], "memory": [], "cold": []}
    for number, (one, reply) in enumerate(zip(asked, replies)):
        time.sleep(QUIET)
        first, text, facts = machine.ask(one)
        if facts.get("tier") != "shared" or facts["cached_tokens"] != LONG_TOKENS:
            sys.exit(f"not restored from the store: {facts}")
        reply.check("restored from the store", text, facts)
        taken["remote"].append(first)
        time.sleep(QUIET)
        taken["get"].append(store.seconds(rows[number % len(rows)]))
        if number > 0:
            # The one before: its sequence was taken since, so it is restored from memory.
            time.sleep(QUIET)
            first, text, facts = machine.ask(asked[number - 1])
            replies[number - 1].check("restored from memory", text, facts)
            if facts["cached_tokens"] != LONG_TOKENS:
                sys.exit(f"not restored from memory: {facts}")
            taken["memory"].append(first)
        time.sleep(QUIET)
        first, text, facts = cold.ask(one)
        reply.check("computed", text, facts)
        if facts["cached_tokens"] > 8:
            sys.exit(f"not computed: {facts}")
        taken["cold"].append(first)
    size = sum(length for _, length in rows[0]["segments"])
    print(f"{LONG_TOKENS} tokens, {size / 1e6:.1f} MB, {len(rows[0]['segments'])} objects, {LONG} times:")
    for name, what in [("remote", "first token, restored from the store"), ("get", "plain parallel GET of the same bytes")]:
        print(f"  {what}: {spread(taken[name])}")
    print(f"  first token, restored from memory: {spread(taken['memory'])}")
    print(f"  first token, computed: {spread(taken['cold'])}")
    bound = statistics.median(taken["get"]) + statistics.median(taken["memory"])
    ratio = statistics.median(taken["remote"]) / bound
    gain = statistics.median(taken["cold"]) / statistics.median(taken["remote"])
    print(f"  store : (GET + memory) = {ratio:.2f} (at most 1.5: {verdict(ratio <= 1.5)})")
    print(f"  computed : store = {gain:.0f} : 1 (at least 30: {verdict(gain >= 30)})", flush=True)
    for server in (machine, cold):
        server.stop()
    store.close()
    weed.kill()


def chain(server, rows, seed):
    """Asks for a conversation that grows by one row each time, and returns its last prompt."""
    tokens = prompt(server, 500 + 16 * rows, seed)
    for number in range(1, rows + 1):
        server.ask(tokens[: 500 + 16 * number], 1)
    return tokens


def rounds(folder):
    """Chains of many rows, with 50 ms for each round trip to the store."""
    weed = Weed(folder / "weed")
    proxy = Proxy(weed.address())
    warming = Server("a", folder, f"http://127.0.0.1:{weed.ports[0]}")
    chains = {length: chain(warming, length, 1000 + length) for length in LENGTHS}
    warming.stop()
    store = Store(proxy.endpoint())
    stored = {row["tokens"]: row["rows"] for row in store.rows()}
    store.close()
    machines = [Server("near", folder, proxy.endpoint()), Server("far", folder, proxy.endpoint())]
    for server in machines:
        server.ask(prompt(server, 600, 1))
    print("restores of chains, without and with 50 ms for each round trip:")
    for length, tokens in chains.items():
        times = []
        for server, latency in zip(machines, (0.0, 0.05)):
            proxy.latency = latency
            before = len(proxy.requests)
            first, _, facts = server.ask(tokens)
            if facts.get("tier") != "shared":
                sys.exit(f"not restored from the store: {facts}")
            times.append(first)
        requests = proxy.requests[before:]
        count = (times[1] - times[0]) / 0.05
        rows = stored.get(facts["cached_tokens"], "?")
        what = f"{rows} rows, {facts['cached_tokens']} of {len(tokens)} tokens"
        print(f"  {what}: {times[0] * 1000:.0f} ms and {times[1] * 1000:.0f} ms, {len(requests)} requests;", end=" ")
        print(f"{count:.1f} round trips (at most 4: {verdict(count <= 4)})", flush=True)
        proxy.latency = 0.0
    for server in machines:
        server.stop()
    weed.kill()


def faults(folder):
    """A store that fails just before each request, beside a server without a store."""
    weed = Weed(folder / "weed")
    endpoint = f"http://127.0.0.1:{weed.ports[0]}"
    prompts = lambda one: [prompt(one, SHORT_TOKENS, 200 + n) for n in range(SHORT)]
    asked, replies = warm(folder, endpoint, prompts, BESIDE_A_STORE)
    print(f"first token of {SHORT_TOKENS} tokens with a store that fails, {SHORT} prompts each, 95th percentiles:")
    for place, (name, fault) in enumerate(FAULTS):
        proxy = Proxy(weed.address())
        machine = Server(f"b{place}", folder, proxy.endpoint(), threads=BESIDE_A_STORE)
        cold = Server(f"cold{place}", folder, threads=BESIDE_A_STORE)
        for server in (machine, cold):
            for warming in (1, 2):
                server.ask(prompt(server, 600, warming))
        taken, tiers = {machine: [], cold: []}, []
        for number, (one, reply) in enumerate(zip(asked, replies)):
            proxy.fault = None
            machine.until_shared()
            proxy.fault = fault
            for server in (machine, cold) if number % 2 == 0 else (cold, machine):
                first, text, facts = server.ask(one)
                reply.check(name, text, facts)
                taken[server].append(first)
                if server is machine:
                    tiers.append(facts.get("tier"))
        ninth = {server: ninety_fifth(times) for server, times in taken.items()}
        ratio = ninth[machine] / ninth[cold]
        middle = statistics.median(with_it / without for with_it, without in zip(taken[machine], taken[cold]))
        hits = sum(tier == "shared" for tier in tiers)
        print(f"  {name}: {ninth[machine] * 1000:.0f} ms, without a store {ninth[cold] * 1000:.0f} ms,", end=" ")
        print(f"ratio {ratio:.3f} (at most 1.05: {verdict(ratio <= 1.05)}; pairs {middle:.3f}), {hits} hits", flush=True)
        proxy.fault = None
        for server in (machine, cold):
            server.stop()
    weed.kill()


def comes_back(folder):
    """A store that is killed while requests run and started again after half a minute."""
    weed = Weed(folder / "weed")
    endpoint = f"http://127.0.0.1:{weed.ports[0]}"
    asked, replies = warm(folder, endpoint, lambda one: [prompt(one, SHORT_TOKENS, 300 + n) for n in range(4)])
    machine = Server("b", folder, endpoint)
    running, seeds = threading.Event(), iter(range(10_000, 20_000))
    running.set()
    served = []

    def client():
        while running.is_set():
            served.append(machine.ask(prompt(machine, 300, next(seeds)), 4)[0])

    load = threading.Thread(target=client)
    load.start()
    time.sleep(3)
    weed.kill()
    until("the store is left alone", lambda: machine.metric("poncho_shared_on") == 0, 60)
    time.sleep(30)
    weed.run()
    back = machine.until_shared()
    running.clear()
    load.join()
    first, text, facts = machine.ask(asked[0])
    hit = facts.get("tier") == "shared" and text == replies[0].restored
    print(f"store killed for 30 s under load: {len(served)} replies, none failed; in use {back:.1f} s after its return")
    print(f"  (at most 60: {verdict(back <= 60)}); the next prompt is restored from it: {verdict(hit)}", flush=True)
    machine.stop()
    weed.kill()


PARTS = {"remote": remote, "rounds": rounds, "faults": faults, "return": comes_back}


def main():
    chosen = sys.argv[1:] or list(PARTS)
    for name in chosen:
        with tempfile.TemporaryDirectory() as folder:
            PARTS[name](pathlib.Path(folder))


main()
