"""OpenAI's Python SDK: models, completions, embeddings and responses. Run by pytest; see conftest.py."""
import asyncio
import json
import math

import openai
import pytest
from conftest import CAT, CLOCK, EXACT_URL, MODEL, PATIENCE, URL, until_idle
from pydantic import BaseModel

NOW = {"type": "function", "name": "now", "parameters": CLOCK, "strict": True}


def respond(oai, asked="Say hello.", **fields):
    fields = {"max_output_tokens": 12, "temperature": 0, **fields}
    return oai.responses.create(model=MODEL, input=asked, **fields)


# Models

def test_models_are_listed_and_found(oai):
    [listed] = oai.models.list()
    found = oai.models.retrieve(MODEL)
    assert listed == found and found.object == "model" and found.owned_by == "poncho" and found.created > 1_700_000_000
    with pytest.raises(openai.NotFoundError) as refused:
        oai.models.retrieve("nobody")
    assert refused.value.code == "model_not_found"


# Completions

def test_a_text_is_gone_on_with(oai):
    answer = oai.completions.create(model=MODEL, prompt="One, two,", max_tokens=4, temperature=0)
    assert answer.object == "text_completion" and answer.id.startswith("cmpl-")
    assert answer.choices[0].text and answer.choices[0].finish_reason in ("length", "stop")
    chunks = list(oai.completions.create(model=MODEL, prompt="One, two,", max_tokens=4, temperature=0, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == answer.choices[0].text


def test_prompts_come_in_four_shapes(oai):
    tokens = oai.post("/../tokenize", body={"content": "One, two,"}, cast_to=object)["tokens"]
    one = oai.completions.create(model=MODEL, prompt="One, two,", max_tokens=3, temperature=0)
    texts = [one.choices[0].text]
    for prompt in (tokens, [tokens], ["One, two,"]):
        texts += [oai.completions.create(model=MODEL, prompt=prompt, max_tokens=3, temperature=0).choices[0].text]
    assert len(set(texts)) == 1
    two = oai.completions.create(model=MODEL, prompt=["One, two,", "A, b,"], max_tokens=3, temperature=0)
    assert [choice.index for choice in two.choices] == [0, 1] and two.choices[0].text == texts[0]


def test_echo_repeats_the_prompt(oai):
    answer = oai.completions.create(model=MODEL, prompt="One, two,", max_tokens=2, temperature=0, echo=True)
    assert answer.choices[0].text.startswith("One, two,") and len(answer.choices[0].text) > 9


def test_completion_logprobs_have_offsets(oai):
    answer = oai.completions.create(model=MODEL, prompt="One, two,", max_tokens=4, temperature=0, logprobs=2)
    found = answer.choices[0].logprobs
    assert "".join(found.tokens) == answer.choices[0].text and len(found.top_logprobs[0]) == 2
    assert found.text_offset[0] == 0 and found.text_offset == sorted(found.text_offset)
    assert all(value <= 0 for value in found.token_logprobs)


def test_a_suffix_needs_a_model_that_fills(oai):
    with pytest.raises(openai.BadRequestError) as refused:
        oai.completions.create(model=MODEL, prompt="a", suffix="b", max_tokens=2)
    assert refused.value.param == "suffix"


@pytest.mark.parametrize("prompt", [[], "", [1, -1], [[]], {"a": 1}])
def test_a_wrong_prompt_is_named(oai, prompt):
    with pytest.raises(openai.BadRequestError) as refused:
        oai.completions.create(model=MODEL, prompt=prompt, max_tokens=2)
    assert refused.value.param.startswith("prompt")


# Embeddings

def test_a_batch_gives_the_vectors_of_one_by_one(oai):
    texts = ["a cat", "a dog sat on a mat", "rain"]
    batch = oai.embeddings.create(model=MODEL, input=texts)
    assert [entry.index for entry in batch.data] == [0, 1, 2] and batch.usage.total_tokens == batch.usage.prompt_tokens
    for entry, text in zip(batch.data, texts):
        [alone] = oai.embeddings.create(model=MODEL, input=text).data
        assert alone.embedding == entry.embedding
        assert math.isclose(math.fsum(x * x for x in alone.embedding), 1, rel_tol=1e-3)


def test_vectors_as_numbers_and_as_base64_are_the_same(oai):
    numbers = oai.embeddings.create(model=MODEL, input="a cat", encoding_format="float").data[0].embedding
    packed = oai.embeddings.create(model=MODEL, input="a cat", encoding_format="base64").data[0].embedding
    assert isinstance(packed, str) and len(packed) >= len(numbers) * 4
    assert oai.embeddings.create(model=MODEL, input="a cat").data[0].embedding == pytest.approx(numbers)


def test_wrong_dimensions_are_named(oai):
    with pytest.raises(openai.BadRequestError) as refused:
        oai.embeddings.create(model=MODEL, input="a", dimensions=7)
    assert refused.value.param == "dimensions"


# Responses

def test_a_response_is_whole_and_kept(oai):
    made = respond(oai, metadata={"a": "b"})
    assert made.id.startswith("resp_") and made.object == "response" and made.status in ("completed", "incomplete")
    assert made.output_text and made.output[0].type == "message" and made.output[0].id.startswith("msg_")
    assert made.usage.total_tokens == made.usage.input_tokens + made.usage.output_tokens
    kept = oai.responses.retrieve(made.id)
    assert kept.output_text == made.output_text and kept.metadata == {"a": "b"}
    [item] = oai.responses.input_items.list(made.id)
    assert item.role == "user" and item.content[0].text == "Say hello."
    oai.responses.delete(made.id)
    for gone in (oai.responses.retrieve, oai.responses.delete):
        with pytest.raises(openai.NotFoundError):
            gone(made.id)


def test_a_response_that_is_not_stored_is_gone(oai):
    made = respond(oai, store=False)
    with pytest.raises(openai.NotFoundError) as refused:
        oai.responses.retrieve(made.id)
    assert refused.value.code == "response_not_found"


def test_the_events_of_a_response_come_in_order(oai):
    events = list(respond(oai, stream=True))
    kinds = [event.type for event in events]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert kinds[:4] == ["response.created", "response.in_progress", "response.output_item.added",
                         "response.content_part.added"]
    assert kinds[-4:-1] == ["response.output_text.done", "response.content_part.done", "response.output_item.done"]
    assert kinds[-1] in ("response.completed", "response.incomplete")
    assert set(kinds[4:-4]) == {"response.output_text.delta"}
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == events[-1].response.output_text == events[-4].text


def test_a_conversation_goes_on_from_an_earlier_response(oai):
    first = respond(oai, "My name is Ann.", instructions="Be brief.")
    second = respond(oai, "And now?", previous_response_id=first.id)
    assert second.previous_response_id == first.id
    assert second.usage.input_tokens > first.usage.input_tokens - 10
    assert second.usage.input_tokens_details.cached_tokens > 0
    with pytest.raises(openai.BadRequestError) as refused:
        respond(oai, previous_response_id="resp_none")
    assert refused.value.param == "previous_response_id"


def test_input_items_are_listed_in_both_orders(oai):
    items = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    made = oai.responses.create(model=MODEL, input=items, max_output_tokens=2)
    texts = lambda **fields: [item.content[0].text for item in oai.responses.input_items.list(made.id, **fields)]
    assert texts() == ["c", "b", "a"] and texts(order="asc") == ["a", "b", "c"]
    page = oai.responses.input_items.list(made.id, limit=2, order="asc")
    assert page.has_more and [item.content[0].text for item in page.data] == ["a", "b"]


def test_a_function_call_makes_the_round(oai):
    first = respond(oai, "Time?", tools=[NOW], tool_choice="required", parallel_tool_calls=False, max_output_tokens=50)
    [call] = [item for item in first.output if item.type == "function_call"]
    assert call.name == "now" and json.loads(call.arguments)["zone"] in ("utc", "local") and call.status == "completed"
    answer = [{"type": "function_call_output", "call_id": call.call_id, "output": "noon"}]
    second = respond(oai, answer, previous_response_id=first.id, tools=[NOW], parallel_tool_calls=False)
    assert second.usage.input_tokens_details.cached_tokens >= first.usage.total_tokens - 1
    with pytest.raises(openai.BadRequestError) as refused:
        respond(oai, [{"type": "function_call_output", "call_id": "nobody", "output": "x"}])
    assert refused.value.param == "input[0].call_id"


def test_a_streamed_function_call_adds_up(oai):
    events = list(respond(oai, "Time?", tools=[NOW], tool_choice={"type": "function", "name": "now"},
                          parallel_tool_calls=False, max_output_tokens=50, stream=True))
    pieces = "".join(e.delta for e in events if e.type == "response.function_call_arguments.delta")
    [done] = [e for e in events if e.type == "response.function_call_arguments.done"]
    assert pieces == done.arguments and json.loads(pieces)["zone"] in ("utc", "local")
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_text_format_is_enforced(oai):
    form = {"format": {"type": "json_schema", "name": "cat", "schema": CAT, "strict": True}}
    cat = json.loads(respond(oai, "A cat.", text=form, max_output_tokens=40).output_text)
    assert set(cat) == {"legs", "tail"} and 0 <= cat["legs"] <= 9


def test_a_pydantic_response_is_parsed(oai):
    class Cat(BaseModel):
        legs: int
        tail: bool

    made = oai.responses.parse(model=MODEL, input="A cat.", text_format=Cat, temperature=0, max_output_tokens=60)
    assert isinstance(made.output_parsed, Cat)


def test_a_cut_response_is_incomplete(oai):
    made = respond(oai, "Count to a hundred.", max_output_tokens=2, extra_body={"ignore_eos": True})
    assert made.status == "incomplete" and made.incomplete_details.reason == "max_output_tokens"
    assert made.usage.output_tokens == 2


def test_response_logprobs_spell_the_text(oai):
    made = respond(oai, include=["message.output_text.logprobs"], top_logprobs=2, max_output_tokens=4)
    part = made.output[0].content[0]
    assert "".join(entry.token for entry in part.logprobs) == part.text
    assert all(len(entry.top_logprobs) == 2 for entry in part.logprobs)


@pytest.mark.parametrize("field, value", [
    ("background", True), ("truncation", "some"), ("include", ["nonsense"]), ("max_output_tokens", 0),
    ("tools", [{"type": "code_interpreter"}]), ("reasoning", {"summary": "loud"}),
])
def test_a_wrong_field_of_a_response_is_named(oai, field, value):
    with pytest.raises(openai.BadRequestError) as refused:
        respond(oai, extra_body={field: value})
    assert refused.value.param.startswith(field)


def test_an_unknown_model_is_not_found(oai):
    with pytest.raises(openai.NotFoundError):
        oai.get("/nothing", cast_to=object)


def test_the_response_stream_helper_and_the_async_client():
    async def run():
        async with openai.AsyncOpenAI(base_url=f"{EXACT_URL}/v1", api_key="any", max_retries=0, timeout=PATIENCE) as oai:
            # The helper wants a response that was not cut, so this one ends by a stop.
            whole = await oai.responses.create(model=MODEL, input="Hi", max_output_tokens=12, temperature=0)
            fields = {"max_output_tokens": 12, "temperature": 0, "extra_body": {"stop": [whole.output_text[6:9]]}}
            async with oai.responses.stream(model=MODEL, input="Hi", **fields) as stream:
                kinds = [event.type async for event in stream]
                final = await stream.get_final_response()
            vectors = await oai.embeddings.create(model=MODEL, input=["a", "b"])
            return kinds, final, vectors

    kinds, final, vectors = asyncio.run(run())
    assert kinds[0] == "response.created" and final.output_text and len(vectors.data) == 2


def test_leaving_a_response_cancels_it(oai):
    with respond(oai, "A long story.", stream=True, max_output_tokens=4000, extra_body={"ignore_eos": True}) as stream:
        for event in stream:
            if event.type == "response.output_text.delta":
                break
    until_idle()
