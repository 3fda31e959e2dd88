//! Embeddings: the shapes of an input, encodings, order, and what is refused.

use poncho_engine::backend::stub::vocab;
use serde_json::{Value, json};

use crate::support::{Server, with};

const PATH: &str = "/v1/embeddings";

fn asking(input: &Value) -> Value {
    json!({"model": "stub", "input": input})
}

fn vector(data: &Value) -> Vec<f64> {
    data["embedding"].as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
}

#[tokio::test]
async fn a_text_becomes_a_vector_of_length_one() {
    let server = Server::plain().await;
    let answer = server.ask(PATH, &with(asking(&json!("Hello")), &json!({"user": "me", "dimensions": 16}))).await;
    assert_eq!((&answer["object"], &answer["model"]), (&json!("list"), &json!("stub")));
    assert_eq!(answer["usage"], json!({"prompt_tokens": 6, "total_tokens": 6}), "five bytes and the start");
    let data = answer["data"].as_array().unwrap();
    assert_eq!((data.len(), &data[0]["object"], &data[0]["index"]), (1, &json!("embedding"), &json!(0)));
    let values = vector(&data[0]);
    assert_eq!(values.len(), 16);
    let length: f64 = values.iter().map(|value| value * value).sum::<f64>().sqrt();
    assert!((length - 1.0).abs() < 1e-6, "{length}");
}

#[tokio::test]
async fn inputs_come_in_four_shapes() {
    let server = Server::plain().await;
    let tokens = vocab::tokens("<s>Hello");
    let expected = server.ask(PATH, &asking(&json!("Hello"))).await["data"].clone();
    for input in [json!(["Hello"]), json!(tokens), json!([tokens])] {
        assert_eq!(server.ask(PATH, &asking(&input)).await["data"], expected, "{input}");
    }
    let marks = server.ask(PATH, &asking(&json!("</s>"))).await;
    assert_eq!(marks["usage"]["prompt_tokens"], 5, "a text never becomes a special token");
}

#[tokio::test]
async fn a_batch_gives_the_same_bits_as_one_by_one_and_in_order() {
    let server = Server::plain().await;
    let long = "x".repeat(2000);
    let texts = ["one", long.as_str(), "two", "one", "three é"];
    let base64 = |input: Value| with(asking(&input), &json!({"encoding_format": "base64"}));
    let batch = server.ask(PATH, &base64(json!(texts))).await;
    let data = batch["data"].as_array().unwrap();
    assert_eq!(data.len(), texts.len());
    let mut tokens = 0;
    for (index, (text, together)) in texts.iter().zip(data).enumerate() {
        let alone = server.ask(PATH, &base64(json!(text))).await;
        assert_eq!((&together["index"], &together["embedding"]), (&json!(index), &alone["data"][0]["embedding"]));
        tokens += alone["usage"]["prompt_tokens"].as_u64().unwrap();
    }
    assert_eq!(batch["usage"]["total_tokens"], tokens);
    assert_eq!(data[0]["embedding"], data[3]["embedding"]);
    assert_ne!(data[0]["embedding"], data[2]["embedding"]);
}

#[tokio::test]
async fn both_encodings_hold_the_same_numbers() {
    let server = Server::plain().await;
    let floats = server.ask(PATH, &with(asking(&json!("Hello")), &json!({"encoding_format": "float"}))).await;
    let text = server.ask(PATH, &with(asking(&json!("Hello")), &json!({"encoding_format": "base64"}))).await;
    let bytes = decode(text["data"][0]["embedding"].as_str().unwrap());
    let decoded: Vec<f64> =
        bytes.chunks(4).map(|chunk| f64::from(f32::from_le_bytes(chunk.try_into().unwrap()))).collect();
    let shown = vector(&floats["data"][0]);
    assert_eq!(decoded.len(), shown.len());
    // JSON shows the shortest digits that mean the same 32-bit number.
    #[expect(clippy::cast_possible_truncation, reason = "both are 32-bit numbers")]
    let same = decoded.iter().zip(&shown).all(|(one, other)| *one as f32 == *other as f32);
    assert!(same, "{decoded:?} {shown:?}");
}

/// Base64 by its definition, so that the server's own code is not what checks it.
fn decode(text: &str) -> Vec<u8> {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits: Vec<u8> = text
        .bytes()
        .filter(|byte| *byte != b'=')
        .flat_map(|byte| {
            let value = LETTERS.iter().position(|letter| *letter == byte).unwrap();
            (0..6).rev().map(move |bit| u8::from(value >> bit & 1 == 1))
        })
        .collect();
    bits.chunks_exact(8).map(|byte| byte.iter().fold(0, |value, bit| value << 1 | bit)).collect()
}

#[tokio::test]
async fn what_cannot_be_embedded_is_refused_by_name() {
    let server = Server::plain().await;
    let cases = [
        (json!({"input": ""}), "input"),
        (json!({"input": []}), "input"),
        (json!({"input": [[]]}), "input[0]"),
        (json!({"input": ["a", ""]}), "input[1]"),
        (json!({"input": 5}), "input"),
        (json!({"input": {"text": "x"}}), "input"),
        (json!({"input": [1, "x"]}), "input[1]"),
        (json!({"input": vec!["x"; 2049]}), "input"),
        (json!({"encoding_format": "hex"}), "encoding_format"),
        (json!({"encoding_format": 5}), "encoding_format"),
        (json!({"dimensions": 8}), "dimensions"),
        (json!({"dimensions": -8}), "dimensions"),
        (json!({"user": 5}), "user"),
        (json!({"model": null}), "model"),
    ];
    for (fields, param) in cases {
        let answer = server.post(PATH, &with(asking(&json!("x")), &fields)).await;
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!(param)), "{}", answer.text);
    }
    let missing = server.post(PATH, &json!({"model": "stub"})).await;
    assert_eq!((missing.status, &missing.json()["error"]["param"]), (400, &json!("input")));
    let unknown = server.post(PATH, &with(asking(&json!("x")), &json!({"model": "nobody"}))).await;
    assert_eq!((unknown.status, &unknown.json()["error"]["code"]), (404, &json!("model_not_found")));
    let token = server.post(PATH, &asking(&json!([1, 9999]))).await;
    assert_eq!((token.status, &token.json()["error"]["code"]), (400, &json!("invalid_value")));
    let long = server.post(PATH, &asking(&json!(["short", "y".repeat(5000)]))).await;
    assert_eq!((long.status, &long.json()["error"]["code"]), (400, &json!("context_length_exceeded")), "{}", long.text);
    server.ask(PATH, &asking(&json!("x"))).await;
}
