"""Cache diagnostics through Anthropic's Python SDK: each reason provoked, whole and streamed.

Run twice by tests/clients/run.py, before and after a restart of a server with two models. The first run asks for the
message that all others are compared with and writes its id into the file that is named; the second run reads it, so that
every reason is found by a server that never saw the message. It must never start or stop a server.
"""
import os
import pathlib
import sys

import anthropic
from anthropic import types

MODEL, OTHER = os.environ["PONCHO_MODEL"], os.environ["PONCHO_OTHER_MODEL"]
FIRST = "This is the first message of a conversation that a test has with a small model."


def tool(name):
    return {"name": name, "description": "A tool of the test", "input_schema": {"type": "object", "properties": {}}}


def user(text):
    return {"role": "user", "content": text}


# What is changed, and the type that the SDK reads the reason as.
CHANGES = [
    ({"model": OTHER}, types.CacheMissModelChanged, "model_changed"),
    ({"system": "You are another agent."}, types.CacheMissSystemChanged, "system_changed"),
    ({"tools": [tool("look"), tool("listen")]}, types.CacheMissToolsChanged, "tools_changed"),
    ({"messages": [user("Another first message.")]}, types.CacheMissMessagesChanged, "messages_changed"),
]


def fields(previous, change):
    base = {"model": MODEL, "max_tokens": 1, "system": "You are an agent of a test.", "tools": [tool("look")],
            "messages": [user(FIRST)], "diagnostics": {"previous_message_id": previous}}
    return {**base, **change}


def ask(claude, previous, **change):
    """The diagnostics of a reply, which are the same for a whole and a streamed one, and its id."""
    whole = claude.messages.create(**fields(previous, change))
    events = list(claude.messages.create(stream=True, **fields(previous, change)))
    [start] = [event for event in events if event.type == "message_start"]
    kinds = [diagnostics and diagnostics.cache_miss_reason.type for diagnostics in
             (whole.diagnostics, start.message.diagnostics)]
    assert kinds[0] == kinds[1], f"whole and streamed differ: {kinds}"
    return whole.diagnostics, whole.id


def main():
    state = pathlib.Path(sys.argv[1])
    claude = anthropic.Anthropic(base_url=os.environ["PONCHO_URL"], api_key="any", max_retries=0, timeout=300)
    if not state.exists():
        diagnostics, first = ask(claude, None)
        assert diagnostics is None, f"a first turn has nothing to differ from: {diagnostics}"
        state.write_text(first)
    first = state.read_text()
    for change, kind, word in CHANGES:
        diagnostics, _ = ask(claude, first, **change)
        reason = diagnostics.cache_miss_reason
        assert isinstance(reason, kind) and reason.type == word, f"{change}: {diagnostics}"
        assert reason.cache_missed_input_tokens > 0, reason
    unknown, _ = ask(claude, "msg_of_nobody")
    assert isinstance(unknown.cache_miss_reason, types.CacheMissPreviousMessageNotFound), unknown
    more = [user(FIRST), {"role": "assistant", "content": "Yes."}, user("And now?")]
    appended, _ = ask(claude, first, messages=more)
    assert appended is None, f"messages were appended and nothing else: {appended}"
    plain = claude.messages.create(**{key: value for key, value in fields(None, {}).items() if key != "diagnostics"})
    assert plain.diagnostics is None, "nobody asked for it"
    print(f"diagnostics: {len(CHANGES) + 1} reasons, whole and streamed", flush=True)


if __name__ == "__main__":
    main()
