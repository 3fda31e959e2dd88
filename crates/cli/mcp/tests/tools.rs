//! Each tool's result, over both transports.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::{ANSWER, ASKED, Poncho, Session, error, eventually, over_http, over_streams, result};

/// A session of each transport.
async fn sessions(poncho: &Poncho) -> [(&'static str, Session); 2] {
    [("streams", over_streams(&poncho.client).await), ("http", over_http(&poncho.client).await)]
}

#[tokio::test(flavor = "multi_thread")]
async fn every_tool_has_a_description_and_schemas_that_its_result_obeys() {
    let poncho = Poncho::start().await;
    for (transport, session) in sessions(&poncho).await {
        let info = session.peer_info().unwrap();
        let server = info.server_info.as_ref().unwrap();
        assert_eq!((server.name.as_str(), server.version.as_str()), ("poncho", env!("CARGO_PKG_VERSION")));
        assert!(info.instructions.as_ref().unwrap().contains("explain"), "{transport}");
        let tools = session.list_all_tools().await.unwrap();
        let names: Vec<&str> = tools.iter().map(|tool| &*tool.name).collect();
        assert_eq!(names, ["explain", "requests", "cache", "models", "ask"], "{transport}");
        for tool in &tools {
            assert!(tool.description.as_ref().is_some_and(|text| text.len() > 40), "{tool:?}");
            assert_eq!(tool.input_schema["type"], "object", "{tool:?}");
            assert_eq!(tool.annotations.as_ref().unwrap().read_only_hint, Some(true));
            let arguments = match &*tool.name {
                "explain" => json!({"text": "a text"}),
                "ask" => json!({"prompt": ASKED}),
                _ => json!({}),
            };
            let schema = tool.output_schema.as_ref().unwrap();
            let named: BTreeSet<&String> = schema["properties"].as_object().unwrap().keys().collect();
            let required: Vec<&str> =
                schema["required"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
            let name: &'static str = names_of(&tool.name);
            let answer = result(&session, name, arguments).await;
            let given: BTreeSet<&String> = answer.as_object().unwrap().keys().collect();
            assert!(given.is_subset(&named), "{name} gives {given:?}");
            assert!(required.iter().all(|name| answer.get(name).is_some()), "{name} needs {required:?}: {answer}");
        }
    }
}

fn names_of(name: &str) -> &'static str {
    ["explain", "requests", "cache", "models", "ask"].into_iter().find(|known| *known == name).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_asks_and_finds_out_what_was_cached() {
    let poncho = Poncho::start().await;
    for (transport, session) in sessions(&poncho).await {
        let reply = result(&session, "ask", json!({"prompt": ASKED, "temperature": 0})).await;
        assert_eq!(
            (&reply["text"], &reply["model"], &reply["finish_reason"]),
            (&json!(ANSWER), &json!("stub"), &json!("stop"))
        );
        assert!(reply["prompt_tokens"].as_u64().unwrap() > 50 && reply["generated_tokens"].as_u64().unwrap() > 5);
        let again = result(&session, "ask", json!({"prompt": ASKED, "model": "stub", "temperature": 0})).await;
        assert!(again["cached_tokens"].as_u64().unwrap() > 50, "{transport}: {again}");
        let cut = result(&session, "ask", json!({"prompt": ASKED, "max_tokens": 2, "temperature": 0})).await;
        assert_eq!((&cut["finish_reason"], &cut["generated_tokens"]), (&json!("length"), &json!(2)));

        let all_ended =
            |answer: &Value| answer["requests"].as_array().unwrap().iter().all(|request| request["stage"] == "ended");
        let seen = eventually(&session, "requests", &json!({"limit": 3}), all_ended).await;
        let requests = seen["requests"].as_array().unwrap();
        assert_eq!(requests.len(), 3);
        assert_eq!(
            (&requests[0]["generated_tokens"], &requests[0]["model"]),
            (&json!(2), &json!("stub")),
            "the newest first"
        );
        for request in requests {
            let sum = request["cached_tokens"].as_u64().unwrap() + request["new_tokens"].as_u64().unwrap();
            assert_eq!(request["prompt_tokens"].as_u64(), Some(sum), "{request}");
            let is_new = request["new_tokens"] != 0;
            assert_eq!(request["why"]["cause"].is_string(), is_new, "{transport}: {request}");
        }

        let cache = eventually(&session, "cache", &json!({"rows": 100}), |cache| cache["rows"] != 0).await;
        assert_eq!(cache["listed"].as_array().unwrap().len() as u64, cache["rows"].as_u64().unwrap());
        let ram = &cache["tiers"].as_array().unwrap().iter().find(|tier| tier["tier"] == "ram").unwrap();
        assert!(ram["bytes"].as_u64().unwrap() > 0 && ram["quota"] == 1 << 26 && ram["on"] == true, "{ram}");
        let saved = eventually(&session, "cache", &json!({}), |cache| {
            cache["savings"][0]["requests"].as_u64().is_some_and(|requests| requests >= 3)
        })
        .await;
        assert!(saved["savings"][0]["cached_tokens"].as_u64().unwrap() > 50, "{saved}");
        assert!(saved["listed"].as_array().unwrap().is_empty() && saved["since"].is_string());

        let models = result(&session, "models", json!({})).await;
        let [model] = &models["models"].as_array().unwrap()[..] else { panic!("{models}") };
        assert_eq!(
            (&model["name"], &model["loaded"], &model["context_length"]),
            (&json!("stub"), &json!(true), &json!(2048))
        );
        assert!(model["capabilities"].as_array().unwrap().contains(&json!("completion")), "{model}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_difference_is_explained_for_messages_bodies_and_earlier_requests() {
    let poncho = Poncho::start().await;
    for (transport, session) in sessions(&poncho).await {
        let system =
            |number: u32| format!("Session {number} of {transport}. You are a careful assistant for a workshop.");
        result(&session, "ask", json!({"prompt": "Go on with it.", "system": system(1), "max_tokens": 1})).await;
        let messages = |number: u32| json!([{"role": "system", "content": system(number)}, {"role": "user", "content": "Go on with it."}]);
        let same = eventually(&session, "explain", &json!({"messages": messages(1)}), |same| same["usable"] != 0).await;
        assert_eq!(same["lost"], 0, "{same}");
        let named = json!({"messages": messages(2), "model": "stub"});
        let body = json!({"body": {"model": "stub", "messages": messages(2)}});
        let tools = [json!({"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}})];
        let with_tools = json!({"messages": messages(1), "tools": tools});
        for asked in [named, body, with_tools] {
            let answer = result(&session, "explain", asked.clone()).await;
            assert!(answer["lost"].as_u64().unwrap() > 20, "{transport} {asked}: {answer}");
            let is_about_tools = answer["cause"] == "tools_changed" && answer["message"].is_null();
            assert_eq!(is_about_tools, asked.get("tools").is_some(), "{answer}");
            assert!(is_about_tools || answer["message"]["role"] == "system", "{answer}");
        }
        let other =
            result(&session, "ask", json!({"prompt": "Go on with it.", "system": system(2), "max_tokens": 1})).await;
        let ended = |answer: &Value| answer["requests"][0]["stage"] == "ended";
        let last = eventually(&session, "requests", &json!({"limit": 1}), ended).await;
        let why = result(&session, "explain", json!({"id": last["requests"][0]["id"]})).await;
        assert_eq!((&why["found"], &why["tokens"]), (&other["cached_tokens"], &other["prompt_tokens"]), "{why}");
        let text = result(&session, "explain", json!({"text": "nobody has sent this"})).await;
        // The mark at the start of every text is cached.
        assert!(text["usable"].as_u64().unwrap() <= 1 && text["model"] == "stub", "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_arguments_are_errors_that_a_model_can_read() {
    let poncho = Poncho::start().await;
    for (transport, session) in sessions(&poncho).await {
        for (name, arguments, part) in [
            ("explain", json!({}), "give one of id, messages, text or body"),
            ("explain", json!({"text": "a", "id": 1}), "give one of id, messages, text or body"),
            ("explain", json!({"text": "a", "tools": []}), "tools belong to messages"),
            ("explain", json!({"text": "a", "model": "nobody"}), "nobody"),
            ("explain", json!({"messages": []}), "messages"),
            ("explain", json!({"id": 99_999}), "request 99999 is not known"),
            ("ask", json!({}), "missing field `prompt`"),
            ("ask", json!({"prompt": "a", "model": "nobody"}), "nobody"),
            ("ask", json!({"prompt": "a", "temperature": -1}), "temperature"),
            ("requests", json!({"limit": 0}), "from 1 to 50"),
            ("cache", json!({"rows": 101}), "at most 100"),
            ("models", json!({"loaded": true}), "unknown field `loaded`"),
        ] {
            let said = error(&session, name, arguments.clone()).await;
            assert!(said.contains(part), "{transport} {name} {arguments}: {said}");
        }
        let unknown = session.call_tool(rmcp::model::CallToolRequestParams::new("nothing")).await.unwrap_err();
        assert!(unknown.to_string().contains("unknown tool \"nothing\""), "{unknown}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_not_there_is_an_error_of_the_tool() {
    let port = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let client = poncho_client::Client::new(&format!("http://{port}"), None).unwrap();
    for session in [over_streams(&client).await, over_http(&client).await] {
        assert_eq!(session.list_all_tools().await.unwrap().len(), 5, "the tools are listed all the same");
        for (name, arguments) in [
            ("explain", json!({"text": "a"})),
            ("explain", json!({"id": 1})),
            ("requests", json!({})),
            ("cache", json!({})),
            ("models", json!({})),
            ("ask", json!({"prompt": "a"})),
            ("ask", json!({"prompt": "a", "model": "m"})),
        ] {
            let said = error(&session, name, arguments).await;
            assert!(said.contains(&format!("cannot reach the server at {port}")), "{name}: {said}");
            assert!(said.contains("poncho serve") && said.contains("--url"), "{name}: {said}");
        }
    }
}
