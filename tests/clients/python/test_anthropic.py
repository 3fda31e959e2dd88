"""Anthropic's Python SDK: messages, whole and streamed, tools, thinking, counting. Run by pytest; see conftest.py."""
import asyncio
import json

import anthropic
import pytest
from conftest import CAT, CLOCK, KEY, LOCKED_URL, MODEL, PATIENCE, URL, user, until_idle

NOW = {"name": "now", "description": "The time", "input_schema": CLOCK}


# The SDK no longer has a field for it; the API still takes it.
GREEDY = {"temperature": 0}


def ask(claude, messages=None, extra_body=None, **fields):
    fields = {"max_tokens": 12, "extra_body": {**GREEDY, **(extra_body or {})}, **fields}
    return claude.messages.create(model=MODEL, messages=messages or user("Say hello."), **fields)


def test_a_whole_message_has_every_field(claude):
    message = ask(claude)
    assert message.id.startswith("msg_") and message.type == "message" and message.role == "assistant"
    assert message.model == MODEL and message.stop_sequence is None
    assert message.stop_reason in ("end_turn", "max_tokens")
    [block] = message.content
    assert block.type == "text" and block.text
    usage = message.usage
    assert usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens > 5
    assert 1 <= usage.output_tokens <= 12


def test_the_events_come_in_order(claude):
    kinds = [event.type for event in ask(claude, stream=True) if event.type != "ping"]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}


def test_a_stream_adds_up_to_the_whole_message(exact_claude):
    whole = ask(exact_claude)
    with exact_claude.messages.stream(model=MODEL, messages=user("Say hello."), max_tokens=12, extra_body=GREEDY) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert final.stop_reason == whole.stop_reason and final.usage.output_tokens == whole.usage.output_tokens


@pytest.mark.parametrize("system", ["Be kind.", [{"type": "text", "text": "Be kind.",
                                                  "cache_control": {"type": "ephemeral"}}]])
def test_a_system_prompt_is_text_or_blocks(claude, system):
    plain = claude.messages.count_tokens(model=MODEL, messages=user("Hi"))
    told = claude.messages.count_tokens(model=MODEL, messages=user("Hi"), system=system)
    assert told.input_tokens > 0 and told.input_tokens != plain.input_tokens
    assert ask(claude, user("Hi"), system=system).content[0].text


def test_what_is_counted_is_what_is_read(claude):
    messages = user("How many tokens are these?")
    usage = ask(claude, messages).usage
    counted = claude.messages.count_tokens(model=MODEL, messages=messages).input_tokens
    assert counted == usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens


def test_the_second_request_reads_the_cache(claude):
    system = "You are terse. " * 12
    ask(claude, user("What is a cache?"), system=system)
    usage = ask(claude, user("What is a cache?"), system=system).usage
    assert usage.cache_read_input_tokens >= 30 and usage.input_tokens + usage.cache_creation_input_tokens <= 1


def test_a_stop_sequence_is_told(exact_claude):
    text = ask(exact_claude, max_tokens=24).content[0].text
    stop = text[len(text) // 2 :][:3].strip() or text[-3:]
    message = ask(exact_claude, max_tokens=24, stop_sequences=[stop])
    assert message.stop_reason == "stop_sequence" and message.stop_sequence == stop
    assert all(stop not in block.text for block in message.content)


def test_max_tokens_is_told(claude):
    message = ask(claude, user("Count."), max_tokens=2, extra_body={"ignore_eos": True})
    assert message.stop_reason == "max_tokens" and message.usage.output_tokens == 2


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "now"}])
def test_a_tool_use_makes_the_round(claude, choice):
    choice = {**choice, "disable_parallel_tool_use": True}
    first = ask(claude, user("Time?"), tools=[NOW], tool_choice=choice, max_tokens=50)
    assert first.stop_reason == "tool_use"
    [block] = [block for block in first.content if block.type == "tool_use"]
    assert block.id.startswith("toolu_") and block.name == "now" and block.input["zone"] in ("utc", "local")
    messages = user("Time?") + [
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": block.id, "content": "noon"}]},
    ]
    auto = {"type": "auto", "disable_parallel_tool_use": True}
    second = ask(claude, messages, tools=[NOW], tool_choice=auto, max_tokens=4)
    usage = first.usage
    prompt = usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens
    assert second.usage.cache_read_input_tokens >= prompt + usage.output_tokens - 1


def test_a_streamed_tool_use_adds_up(claude):
    choice = {"type": "tool", "name": "now", "disable_parallel_tool_use": True}
    with claude.messages.stream(model=MODEL, messages=user("Time?"), max_tokens=50, extra_body=GREEDY, tools=[NOW],
                                tool_choice=choice) as stream:
        pieces = [e.delta.partial_json for e in stream
                  if e.type == "content_block_delta" and e.delta.type == "input_json_delta"]
        final = stream.get_final_message()
    [block] = final.content
    assert json.loads("".join(pieces)) == block.input and block.input["zone"] in ("utc", "local")


def test_no_tool_is_used_if_none_may_be(claude):
    message = ask(claude, user("Time?"), tools=[NOW], tool_choice={"type": "none"})
    assert all(block.type == "text" for block in message.content)


def test_thinking_is_accepted_and_bounded(claude):
    message = ask(claude, user("2+2?"), max_tokens=12, thinking={"type": "enabled", "budget_tokens": 4})
    assert {block.type for block in message.content} <= {"thinking", "text"}
    with pytest.raises(anthropic.BadRequestError) as refused:
        ask(claude, thinking={"type": "enabled", "budget_tokens": 99})
    assert "thinking.budget_tokens" in str(refused.value)


def test_an_output_format_is_enforced(claude):
    form = {"format": {"type": "json_schema", "schema": CAT}}
    message = ask(claude, user("A cat."), max_tokens=40, output_config=form)
    cat = json.loads(message.content[0].text)
    assert set(cat) == {"legs", "tail"} and 0 <= cat["legs"] <= 9


def test_a_begun_reply_is_gone_on_with(claude):
    begun = user("Count.") + [{"role": "assistant", "content": "One, two,"}]
    message = ask(claude, begun, max_tokens=3)
    assert not message.content[0].text.startswith("One, two,")
    counted = claude.messages.count_tokens(model=MODEL, messages=begun).input_tokens
    usage = message.usage
    assert counted == usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens


@pytest.mark.parametrize("fields, named", [
    ({"temperature": 1.5}, "temperature"), ({"stop_sequences": [" "]}, "stop_sequences.0"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"), ({"messages": []}, "messages"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role"), ({"max_tokens": -1}, "max_tokens"),
])
def test_a_wrong_field_is_named(claude, fields, named):
    body = {"model": MODEL, "max_tokens": 4, "messages": user("Hi"), **fields}
    with pytest.raises(anthropic.BadRequestError) as refused:
        claude.post("/v1/messages", body=body, cast_to=object)
    error = refused.value.body
    assert error["type"] == "error" and error["error"]["type"] == "invalid_request_error"
    assert error["error"]["message"].startswith(named) and error["request_id"] == refused.value.request_id


def test_a_prompt_that_is_too_long_has_the_words_clients_look_for(claude):
    with pytest.raises(anthropic.BadRequestError) as refused:
        ask(claude, user("word " * 9000))
    assert "prompt is too long" in str(refused.value)


def test_the_key_is_checked():
    locked = anthropic.Anthropic(base_url=LOCKED_URL, api_key="wrong", max_retries=0, timeout=PATIENCE)
    with pytest.raises(anthropic.AuthenticationError) as refused:
        ask(locked)
    assert refused.value.body["error"]["type"] == "authentication_error"
    assert locked.with_options(api_key=KEY).messages.count_tokens(model=MODEL, messages=user("Hi")).input_tokens > 0


def test_models_can_be_missing(claude):
    with pytest.raises(anthropic.NotFoundError) as refused:
        claude.post("/v1/messages/nothing", body={}, cast_to=object)
    assert refused.value.body["error"]["type"] == "not_found_error"


def test_leaving_a_stream_cancels_the_request(claude):
    body = {"ignore_eos": True}
    with claude.messages.stream(model=MODEL, messages=user("A long story."), max_tokens=4000, extra_body=body) as stream:
        for _, _ in zip(range(2), stream.text_stream):
            pass
    until_idle()


def test_async_clients_run_side_by_side():
    async def run():
        async with anthropic.AsyncAnthropic(base_url=URL, api_key="any", max_retries=0, timeout=PATIENCE) as claude:
            async def streamed(number):
                async with claude.messages.stream(model=MODEL, messages=user(f"Say {number}."), max_tokens=5) as stream:
                    return await stream.get_final_message()
            return await asyncio.gather(*(streamed(number) for number in range(4)))

    for message in asyncio.run(run()):
        assert message.stop_reason in ("end_turn", "max_tokens") and message.content
