"""Ollama's Python SDK: generate, chat, embed and the lists of models. Run by pytest; see conftest.py."""
import asyncio
import json
import math

import ollama
import pytest
from conftest import CAT, CLOCK, MODEL, PATIENCE, URL, user, until_idle

TOOLS = [{"type": "function", "function": {"name": "now", "parameters": CLOCK}}]
GREEDY = {"temperature": 0, "num_predict": 12}


def test_generate_answers_and_streams_the_same(exact_llama):
    whole = exact_llama.generate(MODEL, "Say hello.", options=GREEDY)
    assert whole.model == MODEL and whole.done and whole.done_reason in ("stop", "length") and whole.response
    assert whole.eval_count <= 12 and whole.prompt_eval_count > 0 and whole.total_duration > 0
    lines = list(exact_llama.generate(MODEL, "Say hello.", options=GREEDY, stream=True))
    assert "".join(line.response for line in lines) == whole.response
    assert [line.done for line in lines] == [False] * (len(lines) - 1) + [True]


def test_a_context_goes_on(llama):
    first = llama.generate(MODEL, "Say hello.", options=GREEDY)
    assert len(first.context) > 5
    second = llama.generate(MODEL, "Again.", context=first.context, options={**GREEDY, "num_predict": 3})
    assert second.context[: len(first.context)] == first.context and second.response


def test_raw_and_system_change_the_prompt(llama):
    counts = [llama.generate(MODEL, "Hi", options={"num_predict": 1}, **fields).prompt_eval_count
              for fields in ({}, {"raw": True}, {"system": "You are a cat who says a lot about mice."})]
    assert len(set(counts)) == 3 and counts[1] < counts[0]


def test_an_empty_generate_only_loads(llama):
    answer = llama.generate(MODEL, keep_alive=-1)
    assert answer.done and answer.done_reason == "load" and answer.response == ""


def test_chat_answers_and_streams_the_same(exact_llama):
    whole = exact_llama.chat(MODEL, user("Say hello."), options=GREEDY)
    assert whole.message.role == "assistant" and whole.message.content and whole.done
    lines = list(exact_llama.chat(MODEL, user("Say hello."), options=GREEDY, stream=True))
    assert "".join(line.message.content or "" for line in lines) == whole.message.content
    assert lines[-1].done_reason == whole.done_reason and lines[-1].eval_count == whole.eval_count


def test_the_same_seed_says_the_same(exact_llama):
    said = [exact_llama.chat(MODEL, user("Hi"), options={"temperature": 1.3, "seed": seed, "num_predict": 12}).message.content
            for seed in (3, 3, 4, 5)]
    assert said[0] == said[1] and len(set(said)) > 1


def test_a_stop_ends_the_reply(exact_llama):
    text = exact_llama.chat(MODEL, user("Say hello."), options={**GREEDY, "num_predict": 24}).message.content
    stop = text[len(text) // 2 :][:3]
    cut = exact_llama.chat(MODEL, user("Say hello."), options={**GREEDY, "num_predict": 24, "stop": [stop]})
    assert stop not in cut.message.content and text.startswith(cut.message.content) and cut.done_reason == "stop"


@pytest.mark.parametrize("endpoint", ["generate", "chat"])
def test_a_format_is_enforced(llama, endpoint):
    options = {"temperature": 0, "num_predict": 40}
    if endpoint == "generate":
        text = llama.generate(MODEL, "A cat.", format=CAT, options=options).response
    else:
        text = llama.chat(MODEL, user("A cat."), format=CAT, options=options).message.content
    cat = json.loads(text)
    assert set(cat) == {"legs", "tail"} and 0 <= cat["legs"] <= 9


def test_format_json_begins_an_object(llama):
    answer = llama.chat(MODEL, user("A cat as JSON."), format="json", options={"temperature": 0, "num_predict": 40})
    assert answer.message.content.lstrip().startswith("{")


def test_tools_are_offered_and_answers_read(llama):
    first = llama.chat(MODEL, user("Time?"), tools=TOOLS, options=GREEDY)
    assert first.message.content or first.message.tool_calls
    call = {"function": {"name": "now", "arguments": {"zone": "utc"}}}
    messages = user("Time?") + [{"role": "assistant", "content": "", "tool_calls": [call]},
                                {"role": "tool", "tool_name": "now", "content": "noon"}]
    second = llama.chat(MODEL, messages, tools=TOOLS, options={**GREEDY, "num_predict": 3})
    assert second.prompt_eval_count > first.prompt_eval_count and second.done


def test_logprobs_spell_the_reply(llama):
    answer = llama.chat(MODEL, user("Hi"), logprobs=True, top_logprobs=2, options={**GREEDY, "num_predict": 4})
    assert "".join(entry.token for entry in answer.logprobs) == answer.message.content
    assert all(entry.logprob <= 0 and len(entry.top_logprobs) == 2 for entry in answer.logprobs)


def test_images_are_refused(llama):
    with pytest.raises(ollama.ResponseError) as refused:
        llama.chat(MODEL, [{"role": "user", "content": "What is it?", "images": ["aGVsbG8="]}])
    assert refused.value.status_code == 400 and "image" in refused.value.error


def test_embed_gives_unit_vectors_one_by_one(llama):
    texts = ["a cat", "a dog sat on a mat"]
    batch = llama.embed(MODEL, texts)
    assert len(batch.embeddings) == 2 and batch.prompt_eval_count > 2
    for vector, text in zip(batch.embeddings, texts):
        assert llama.embed(MODEL, text).embeddings[0] == vector
        assert math.isclose(math.fsum(x * x for x in vector), 1, rel_tol=1e-3)


def test_the_older_embeddings_point_the_same_way(llama):
    old, new = llama.embeddings(MODEL, "a cat").embedding, llama.embed(MODEL, "a cat").embeddings[0]
    length = math.sqrt(math.fsum(x * x for x in old))
    assert [x / length for x in old] == pytest.approx(list(new), abs=1e-4)


def test_the_lists_of_models(llama):
    [listed] = llama.list().models
    [loaded] = llama.ps().models
    assert listed.model.startswith(MODEL) and listed.model == loaded.model and listed.digest == loaded.digest
    assert listed.size > 50_000_000 and listed.details.format == "gguf" and listed.details.family == "llama"
    assert loaded.context_length >= 2048


def test_show_tells_about_the_model(llama):
    shown = llama.show(MODEL)
    assert shown.modelinfo["general.architecture"] == "llama" and "completion" in shown.capabilities
    assert "im_start" in shown.template and shown.details.quantization_level


@pytest.mark.parametrize("call", [
    lambda llama: llama.generate(MODEL, "a", suffix="b"),
    lambda llama: llama.generate(MODEL, "a", template="{{ if"),
    lambda llama: llama.chat(MODEL, [{"role": "robot", "content": "x"}]),
])
def test_a_wrong_request_is_a_response_error(llama, call):
    with pytest.raises(ollama.ResponseError) as refused:
        call(llama)
    assert refused.value.status_code == 400 and refused.value.error


@pytest.mark.parametrize("options, named", [({"temperature": -1}, "options.temperature"), ({"top_p": 3}, "options.top_p")])
def test_a_wrong_option_is_named(llama, options, named):
    with pytest.raises(ollama.ResponseError) as refused:
        llama.generate(MODEL, "Hi", options=options)
    assert refused.value.status_code == 400 and refused.value.error.startswith(named)


def test_leaving_a_stream_cancels_the_request(llama):
    stream = llama.generate(MODEL, "A long story.", raw=True, options={"num_predict": 4000}, stream=True)
    next(stream)
    stream.close()
    until_idle()


def test_async_clients_run_side_by_side():
    async def run():
        llama = ollama.AsyncClient(host=URL, timeout=PATIENCE)
        async def streamed(number):
            lines = await llama.chat(MODEL, user(f"Say {number}."), options={"num_predict": 5}, stream=True)
            return [line async for line in lines]
        return await asyncio.gather(*(streamed(number) for number in range(4)))

    for lines in asyncio.run(run()):
        assert lines[-1].done and "".join(line.message.content or "" for line in lines)
