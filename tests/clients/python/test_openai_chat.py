"""OpenAI's Python SDK: chat completions, whole and streamed. Run by pytest; see conftest.py.

The model is small and says little of sense, so only what the server enforces is asserted, never prose.
"""
import asyncio
import json

import openai
import pytest
from conftest import CAT, CLOCK, KEY, LOCKED_URL, MODEL, PATIENCE, URL, WEATHER, user, until_idle
from pydantic import BaseModel

TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "Weather of a city", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "now", "parameters": CLOCK}},
]


def ask(oai, messages=None, **fields):
    fields = {"max_tokens": 12, "temperature": 0, **fields}
    return oai.chat.completions.create(model=MODEL, messages=messages or user("Say hello."), **fields)


def arguments_fit(call):
    arguments = json.loads(call.function.arguments)
    if call.function.name == "now":
        assert arguments["zone"] in ("utc", "local") and len(arguments) == 1
    else:
        assert call.function.name == "get_weather"
        assert len(arguments["city"]) <= 12 and arguments["unit"] in ("c", "f") and len(arguments) == 2


def test_a_whole_answer_has_every_field(oai):
    answer = ask(oai)
    assert answer.id.startswith("chatcmpl-") and answer.object == "chat.completion" and answer.model == MODEL
    assert answer.created > 1_700_000_000 and answer.system_fingerprint.startswith("fp_")
    [choice] = answer.choices
    assert choice.index == 0 and choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason in ("stop", "length") and choice.logprobs is None and choice.message.tool_calls is None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert 1 <= answer.usage.completion_tokens <= 12


def test_a_stream_adds_up_to_the_whole_answer(exact_oai):
    whole = ask(exact_oai)
    chunks = list(ask(exact_oai, stream=True))
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"} and len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == whole.choices[0].finish_reason
    assert all(chunk.choices[0].finish_reason is None for chunk in chunks[:-1])
    assert all(chunk.usage is None for chunk in chunks)


def test_a_stream_with_usage_ends_with_it(oai):
    chunks = list(ask(oai, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens >= 1
    assert all(chunk.usage is None and len(chunk.choices) == 1 for chunk in chunks[:-1])


def test_the_stream_helper_collects_a_completion(exact_oai):
    # The helper refuses replies that were cut, so this one ends by a stop.
    stop = ask(exact_oai).choices[0].message.content[6:9]
    fields = {"messages": user("Say hello."), "max_tokens": 12, "temperature": 0, "stop": [stop]}
    with exact_oai.chat.completions.stream(model=MODEL, **fields) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert kinds[0] == "chunk" and "content.delta" in kinds and "content.done" in kinds
    assert final.choices[0].message.content == ask(exact_oai, stop=[stop]).choices[0].message.content


def test_max_completion_tokens_cuts_with_length(oai):
    answer = oai.chat.completions.create(model=MODEL, messages=user("Count."), max_completion_tokens=3, temperature=0)
    assert answer.choices[0].finish_reason == "length" and answer.usage.completion_tokens == 3


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_ends_the_reply_and_is_not_part_of_it(exact_oai, stream):
    text = ask(exact_oai, max_tokens=24).choices[0].message.content
    stop = text[len(text) // 2 :][:3]
    answer = ask(exact_oai, max_tokens=24, stop=[stop], stream=stream)
    if stream:
        chunks = list(answer)
        said, finish = "".join(c.choices[0].delta.content or "" for c in chunks), chunks[-1].choices[0].finish_reason
    else:
        said, finish = answer.choices[0].message.content, answer.choices[0].finish_reason
    assert finish == "stop" and stop not in said and text.startswith(said)


def test_the_same_seed_says_the_same(exact_oai):
    said = [ask(exact_oai, temperature=1.3, seed=seed, max_tokens=16).choices[0].message.content for seed in (5, 5, 6, 7, 8)]
    assert said[0] == said[1] and len(set(said)) > 1


def test_several_choices_have_their_own_texts(oai):
    answer = ask(oai, n=3, temperature=1.2, seed=1)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in answer.choices}) > 1
    assert answer.usage.completion_tokens > 12 and answer.usage.completion_tokens <= 36


def test_streamed_choices_all_end(oai):
    chunks = list(ask(oai, n=2, temperature=1.2, seed=1, stream=True))
    ends = [chunk.choices[0].index for chunk in chunks if chunk.choices[0].finish_reason]
    assert sorted(ends) == [0, 1]


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_spell_the_reply(oai, stream):
    answer = ask(oai, logprobs=True, top_logprobs=3, max_tokens=6, stream=stream)
    if stream:
        choices = [chunk.choices[0] for chunk in answer]
        content = [entry for choice in choices if choice.logprobs for entry in choice.logprobs.content]
        text = "".join(choice.delta.content or "" for choice in choices)
    else:
        content, text = answer.choices[0].logprobs.content, answer.choices[0].message.content
    assert b"".join(bytes(entry.bytes) for entry in content).decode() == text
    for entry in content:
        assert entry.logprob <= 0 and len(entry.top_logprobs) == 3
        ranked = [top.logprob for top in entry.top_logprobs]
        assert ranked == sorted(ranked, reverse=True) and entry.logprob == ranked[0], "greedy takes the best"


def test_a_logit_bias_bans_a_token(oai):
    first = ask(oai, logprobs=True, top_logprobs=1, max_tokens=1).choices[0].logprobs.content[0]
    tokens = oai.post("/../tokenize", body={"content": first.token}, cast_to=object)["tokens"]
    second = ask(oai, max_tokens=1, logit_bias={str(tokens[0]): -100}).choices[0].message.content
    assert second != first.token


def test_the_second_request_finds_the_first(oai):
    messages = [{"role": "system", "content": "You are terse. " * 12}, *user("What is a cache?")]
    first = ask(oai, messages)
    second = ask(oai, messages)
    assert second.usage.prompt_tokens_details.cached_tokens >= second.usage.prompt_tokens - 1
    assert second.choices[0].message.content == first.choices[0].message.content


def test_the_poncho_object_comes_on_request(oai):
    facts = ask(oai, extra_body={"poncho": True}).poncho
    assert facts["hit"] in ("exact", "partial", "cold", "sticky") and facts["cached_tokens"] >= 0 and facts["prefill_ms"] >= 0
    assert not hasattr(ask(oai), "poncho")


def test_a_developer_is_a_system(oai):
    texts = [ask(oai, [{"role": role, "content": "Be kind."}, *user("Hi")]).choices[0].message.content
             for role in ("developer", "system")]
    assert texts[0] == texts[1]


def test_content_parts_are_joined(oai):
    parts = [{"type": "text", "text": "Say "}, {"type": "text", "text": "hello."}]
    answer = ask(oai, [{"role": "user", "content": parts}])
    assert answer.choices[0].message.content and answer.usage.prompt_tokens > 5


def test_images_are_refused_by_name(oai):
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    with pytest.raises(openai.BadRequestError) as refused:
        ask(oai, [{"role": "user", "content": [part]}])
    assert refused.value.param == "messages[0].content[0].type"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "now"}}])
def test_a_tool_must_be_called(oai, choice, stream):
    fields = {"tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False, "max_tokens": 60}
    if stream:
        with oai.chat.completions.stream(model=MODEL, messages=user("Time?"), temperature=0, **fields) as events:
            for _ in events:
                pass
            message = events.get_final_completion().choices[0]
    else:
        message = ask(oai, user("Time?"), **fields).choices[0]
    assert message.finish_reason == "tool_calls" and not message.message.content
    [call] = message.message.tool_calls
    assert call.type == "function" and call.id
    arguments_fit(call)
    assert choice == "required" or call.function.name == "now"


def test_no_tool_is_called_if_none_may_be(oai):
    answer = ask(oai, user("Time?"), tools=TOOLS, tool_choice="none")
    assert answer.choices[0].message.tool_calls is None and answer.choices[0].message.content


def test_a_free_choice_says_something_or_calls(oai):
    message = ask(oai, user("Time?"), tools=TOOLS, tool_choice="auto").choices[0].message
    assert message.content or message.tool_calls
    for call in message.tool_calls or []:
        arguments_fit(call)


def test_parallel_calls_have_ids_of_their_own(oai):
    answer = ask(oai, user("Time here and in UTC?"), tools=TOOLS, tool_choice="required", parallel_tool_calls=True,
                 max_tokens=90, temperature=1, seed=2)
    calls = answer.choices[0].message.tool_calls
    assert calls and len({call.id for call in calls}) == len(calls)
    if answer.choices[0].finish_reason == "tool_calls":
        for call in calls:
            arguments_fit(call)


def test_a_tools_answer_goes_on_from_what_was_sampled(oai):
    messages = user("What is the weather in Paris?")
    first = ask(oai, messages, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, max_tokens=60)
    reply = first.choices[0].message
    messages += [reply.model_dump(exclude_none=True),
                 {"role": "tool", "tool_call_id": reply.tool_calls[0].id, "content": "Sunny"}]
    second = ask(oai, messages, tools=TOOLS, parallel_tool_calls=False, max_tokens=4)
    assert second.usage.prompt_tokens_details.cached_tokens >= first.usage.total_tokens - 1
    assert second.choices[0].finish_reason in ("stop", "length", "tool_calls")


@pytest.mark.parametrize("stream", [False, True])
def test_json_schema_is_enforced(oai, stream):
    form = {"type": "json_schema", "json_schema": {"name": "cat", "strict": True, "schema": CAT}}
    answer = ask(oai, user("Describe a cat."), response_format=form, max_tokens=40, stream=stream)
    text = ("".join(c.choices[0].delta.content or "" for c in answer) if stream else answer.choices[0].message.content)
    cat = json.loads(text)
    assert set(cat) == {"legs", "tail"} and 0 <= cat["legs"] <= 9 and isinstance(cat["tail"], bool)


def test_json_object_begins_an_object(oai):
    answer = ask(oai, user("A cat as JSON."), response_format={"type": "json_object"}, max_tokens=60)
    text = answer.choices[0].message.content
    assert text.lstrip().startswith("{")
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(text), dict)


def test_a_pydantic_model_comes_back_parsed(oai):
    class Cat(BaseModel):
        legs: int
        tail: bool

    answer = oai.chat.completions.parse(model=MODEL, messages=user("A cat."), response_format=Cat, temperature=0,
                                        max_tokens=60)
    assert isinstance(answer.choices[0].message.parsed, Cat)


@pytest.mark.parametrize("field, value", [
    ("temperature", -1), ("top_p", 2), ("n", 0), ("n", 99), ("top_logprobs", 99), ("max_tokens", "many"),
    ("tool_choice", "always"), ("response_format", {"type": "xml"}), ("stop", 7), ("logit_bias", {"x": 1}),
])
def test_a_wrong_field_is_named(oai, field, value):
    with pytest.raises(openai.BadRequestError) as refused:
        ask(oai, extra_body={field: value, **({"logprobs": True} if field == "top_logprobs" else {})})
    assert refused.value.param.startswith(field) and refused.value.type == "invalid_request_error"
    assert refused.value.status_code == 400 and refused.value.code


def test_an_unknown_field_is_accepted(oai):
    assert ask(oai, extra_body={"x_unknown": [1]}, user="somebody").choices[0].message.content


def test_a_prompt_that_is_too_long_says_so(oai):
    with pytest.raises(openai.BadRequestError) as refused:
        ask(oai, user("word " * 9000))
    assert refused.value.code == "context_length_exceeded"


def test_the_key_is_checked():
    locked = openai.OpenAI(base_url=f"{LOCKED_URL}/v1", api_key="wrong", max_retries=0, timeout=PATIENCE)
    with pytest.raises(openai.AuthenticationError) as refused:
        locked.models.list()
    assert refused.value.status_code == 401 and refused.value.code == "invalid_api_key"
    assert KEY not in str(refused.value)
    listed = locked.with_options(api_key=KEY).models.list()
    assert [model.id for model in listed] == [MODEL]


def test_a_full_queue_is_a_rate_limit():
    async def flood():
        async with openai.AsyncOpenAI(base_url=f"{LOCKED_URL}/v1", api_key=KEY, max_retries=0, timeout=PATIENCE) as oai:
            one = lambda: oai.chat.completions.create(model=MODEL, messages=user("Hi"), n=8, max_tokens=2)
            return await asyncio.gather(*(one() for _ in range(14)), return_exceptions=True)

    answers = asyncio.run(flood())
    refused = [answer for answer in answers if isinstance(answer, Exception)]
    assert refused and all(isinstance(error, openai.RateLimitError) for error in refused), refused
    assert all(error.code == "overloaded" and error.response.headers["retry-after"] for error in refused)
    served = [answer for answer in answers if not isinstance(answer, Exception)]
    assert served and all(len(answer.choices) == 8 for answer in served)


def test_leaving_a_stream_cancels_the_request(oai):
    stream = ask(oai, user("Tell a very long story."), stream=True, max_tokens=4000, extra_body={"ignore_eos": True})
    for _, _ in zip(range(3), stream):
        pass
    stream.close()
    until_idle()
    assert ask(oai).choices[0].message.content, "the next request works"


def test_async_clients_run_side_by_side():
    async def run():
        async with openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key="any", max_retries=0, timeout=PATIENCE) as oai:
            async def streamed(number):
                stream = await oai.chat.completions.create(
                    model=MODEL, messages=user(f"Say {number}."), max_tokens=6, temperature=0, stream=True)
                return [chunk async for chunk in stream]
            return await asyncio.gather(*(streamed(number) for number in range(6)))

    for chunks in asyncio.run(run()):
        assert chunks[-1].choices[0].finish_reason in ("stop", "length")
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


def test_cancelling_an_async_task_cancels_the_request():
    async def run():
        async with openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key="any", max_retries=0, timeout=PATIENCE) as oai:
            call = asyncio.create_task(oai.chat.completions.create(
                model=MODEL, messages=user("Go on forever."), max_tokens=4000, extra_body={"ignore_eos": True}))
            done, _ = await asyncio.wait([call], timeout=1)
            assert not done
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call

    asyncio.run(run())
    until_idle()
