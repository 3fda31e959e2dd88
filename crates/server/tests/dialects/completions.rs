//! Completions: the shapes of a prompt, echo, several prompts and replies, log probabilities, streams.

use poncho_engine::backend::stub::vocab;
use serde_json::{Value, json};

use crate::support::{Server, Setup, with};

const PATH: &str = "/v1/completions";

async fn server() -> Server {
    let replies = [("<s>Once", " upon a time, there was a fox.</s>"), ("<s>Twice", " a day</s>")];
    let replies = replies.map(|(prompt, reply)| (prompt.to_owned(), reply.to_owned())).to_vec();
    Server::start(Setup { replies, ..Setup::default() }).await
}

fn asking(prompt: &Value) -> Value {
    json!({"model": "stub", "prompt": prompt, "temperature": 0})
}

#[tokio::test]
async fn a_text_goes_on() {
    let server = server().await;
    let answer = server.ask(PATH, &asking(&json!("Once"))).await;
    assert!(answer["id"].as_str().unwrap().starts_with("cmpl-"));
    assert_eq!(answer["object"], "text_completion");
    let choice = &answer["choices"][0];
    assert_eq!(
        (&choice["text"], &choice["finish_reason"]),
        (&json!(" upon a time, th"), &json!("length")),
        "16 tokens"
    );
    assert_eq!((&answer["usage"]["prompt_tokens"], &answer["usage"]["completion_tokens"]), (&json!(5), &json!(16)));
    let whole = server.ask(PATH, &with(asking(&json!("Once")), &json!({"max_tokens": 99, "poncho": true}))).await;
    assert_eq!(whole["choices"][0]["text"], " upon a time, there was a fox.");
    assert_eq!(whole["choices"][0]["finish_reason"], "stop");
    assert!(whole["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap() >= 4);
    assert_ne!(whole["poncho"]["hit"], "cold");
}

#[tokio::test]
async fn prompts_come_in_four_shapes() {
    let server = server().await;
    let once = vocab::tokens("<s>Once");
    for prompt in [json!("Once"), json!(["Once"]), json!(once), json!([once])] {
        let answer = server.ask(PATH, &asking(&prompt)).await;
        assert_eq!(answer["choices"][0]["text"], " upon a time, th", "{prompt}");
    }
    let echoed = server.ask(PATH, &with(asking(&json!(once)), &json!({"echo": true, "max_tokens": 5}))).await;
    assert_eq!(echoed["choices"][0]["text"], "<s>Once upon");
}

#[tokio::test]
async fn prompts_and_replies_are_numbered_prompt_by_prompt() {
    let server = server().await;
    let body = with(asking(&json!(["Once", "Twice"])), &json!({"n": 2, "max_tokens": 6, "echo": true}));
    let answer = server.ask(PATH, &body).await;
    let texts: Vec<&str> =
        answer["choices"].as_array().unwrap().iter().map(|choice| choice["text"].as_str().unwrap()).collect();
    assert_eq!(texts, ["Once upon ", "Once upon ", "Twice a day", "Twice a day"]);
    assert_eq!(answer["usage"]["prompt_tokens"], 5 + 6, "each prompt counts once");
    let chunks = server.stream(PATH, &with(body, &json!({"stream_options": {"include_usage": true}}))).await.chunks();
    for (index, text) in texts.iter().enumerate() {
        let pieces = chunks.iter().flat_map(|chunk| chunk["choices"].as_array().unwrap());
        let joined: String =
            pieces.filter(|choice| choice["index"] == index).map(|choice| choice["text"].as_str().unwrap()).collect();
        assert_eq!(joined, *text);
    }
    assert_eq!(chunks.last().unwrap()["usage"]["prompt_tokens"], 11);
    assert_eq!(chunks.iter().filter(|chunk| chunk["choices"][0]["finish_reason"].is_string()).count(), 4);
}

#[tokio::test]
async fn log_probabilities_have_their_own_shape_here() {
    let server = server().await;
    let body = with(asking(&json!("Once")), &json!({"logprobs": 2, "max_tokens": 3}));
    let logprobs = server.ask(PATH, &body).await["choices"][0]["logprobs"].clone();
    assert_eq!((&logprobs["tokens"], &logprobs["text_offset"]), (&json!([" ", "u", "p"]), &json!([0, 1, 2])));
    assert_eq!(logprobs["token_logprobs"].as_array().unwrap().len(), 3);
    assert_eq!(logprobs["top_logprobs"][0].as_object().unwrap().len(), 2);
    let chunks = server.stream(PATH, &body).await.chunks();
    let offsets: Vec<u64> = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["logprobs"]["text_offset"].as_array())
        .flatten()
        .map(|offset| offset.as_u64().unwrap())
        .collect();
    assert_eq!(offsets, [0, 1, 2]);
}

#[tokio::test]
async fn what_cannot_be_done_is_refused_by_name() {
    let server = server().await;
    let cases = [
        (json!({"suffix": "the end"}), "suffix"),
        (json!({"best_of": 3}), "best_of"),
        (json!({"logprobs": 6}), "logprobs"),
        (json!({"logprobs": 1, "echo": true}), "echo"),
        (json!({"prompt": {"text": "x"}}), "prompt"),
        (json!({"prompt": [1, 2, 900]}), "prompt[2]"),
        (json!({"prompt": ["a", [1, 900]]}), "prompt[1][1]"),
        (json!({"prompt": ["a", "b"], "session_id": "s"}), "prompt"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"echo": "yes"}), "echo"),
    ];
    for (fields, param) in cases {
        let answer = server.post(PATH, &with(asking(&json!("Once")), &fields)).await;
        assert_eq!(answer.status, 400, "{}", answer.text);
        assert_eq!(answer.json()["error"]["param"].as_str().unwrap_or_default(), param, "{}", answer.text);
    }
    let missing = server.post(PATH, &json!({"model": "stub"})).await;
    assert_eq!((missing.status, &missing.json()["error"]["param"]), (400, &json!("prompt")));
    server.ask(PATH, &with(asking(&json!("Once")), &json!({"suffix": "", "best_of": 1}))).await;
}

#[tokio::test]
async fn a_hole_is_filled_where_the_model_knows_how() {
    let setup = Setup {
        replies: vec![
            ("<s>\u{1}Once\u{2} a time\u{3}".into(), " upon</s>".into()),
            ("<s>\u{1}\u{2} a time\u{3}".into(), "Once</s>".into()),
        ],
        fills_gaps: true,
        ..Setup::default()
    };
    let fill = |prompt: &Value| with(asking(prompt), &json!({"suffix": " a time"}));
    let server = Server::start(setup).await;
    for prompt in [json!("Once"), json!(vocab::tokens("Once")), json!(["Once"])] {
        let answer = server.ask(PATH, &fill(&prompt)).await;
        assert_eq!(answer["choices"][0]["text"], " upon", "{prompt}");
    }
    let whole = server.ask(PATH, &fill(&json!(""))).await;
    assert_eq!(whole["choices"][0]["text"], "Once", "a hole may stand at the start");
    let chunks = server.stream(PATH, &fill(&json!("Once"))).await.chunks();
    let text: String = chunks.iter().map(|chunk| chunk["choices"][0]["text"].as_str().unwrap()).collect();
    assert_eq!(text, " upon");
    let body = with(fill(&json!("<think>")), &json!({"suffix": "<think>"}));
    let count = server.ask(PATH, &body).await["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(count, 4 + 7 + 7, "marks in the texts stay texts");
    let refused = Server::plain().await.post(PATH, &fill(&json!("Once"))).await;
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("suffix")), "{}", refused.text);
}
