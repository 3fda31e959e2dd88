//! The manifests for Kubernetes: each object follows the published schema, and the objects fit together.
//!
//! The schema is that of a Kubernetes release, without unknown fields. `scripts/fetch/kubernetes.py` fetches it.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Map, Value, json};
use yaml_rust2::{Yaml, YamlLoader};

use crate::support::{poncho, run};

const FILES: [&str; 3] = ["nats.yaml", "node.yaml", "router.yaml"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn definitions() -> Value {
    let file = root().join(".tools/kubernetes/definitions.json");
    if !file.is_file() {
        let fetched = Command::new(root().join("scripts/fetch/kubernetes.py")).status().unwrap();
        assert!(fetched.success(), "scripts/fetch/kubernetes.py could not fetch the schema");
    }
    serde_json::from_str::<Value>(&std::fs::read_to_string(file).unwrap()).unwrap()["$defs"].take()
}

fn json_of(yaml: &Yaml) -> Value {
    match yaml {
        Yaml::Hash(hash) => {
            let fields = hash.iter().map(|(name, value)| (name.as_str().unwrap().to_owned(), json_of(value)));
            Value::Object(fields.collect::<Map<_, _>>())
        }
        Yaml::Array(values) => values.iter().map(json_of).collect(),
        Yaml::String(text) => json!(text),
        Yaml::Integer(number) => json!(number),
        Yaml::Real(number) => json!(number.parse::<f64>().unwrap()),
        Yaml::Boolean(value) => json!(value),
        Yaml::Null => Value::Null,
        other => panic!("{other:?} has no place in a manifest"),
    }
}

fn objects(text: &str) -> Vec<Value> {
    YamlLoader::load_from_str(text).unwrap().iter().map(json_of).collect()
}

fn read(name: &str) -> String {
    std::fs::read_to_string(root().join("packaging/kubernetes").join(name)).unwrap()
}

fn all() -> Vec<Value> {
    FILES.iter().flat_map(|name| objects(&read(name))).collect()
}

fn is_of_type(value: &Value, name: &str) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_i64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        _ => panic!("a type {name}"),
    }
}

/// What a value has against its schema, each with the place.
fn check(all: &Value, schema: &Value, value: &Value, place: &str, problems: &mut Vec<String>) {
    if let Some(name) = schema["$ref"].as_str() {
        let name = name.trim_start_matches("#/$defs/");
        assert!(all[name].is_object(), "the schema has {name}");
        return check(all, &all[name], value, place, problems);
    }
    if let Some(ways) = schema["oneOf"].as_array() {
        let fits = ways.iter().any(|way| {
            let mut wrong = Vec::new();
            check(all, way, value, place, &mut wrong);
            wrong.is_empty()
        });
        if !fits {
            problems.push(format!("{place}: {value} fits no form"));
        }
        return;
    }
    let types: Vec<&str> = match &schema["type"] {
        Value::String(name) => vec![name],
        Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    if !types.is_empty() && !types.iter().any(|name| is_of_type(value, name)) {
        problems.push(format!("{place}: {value} is not {}", types.join(" or ")));
        return;
    }
    if schema["enum"].as_array().is_some_and(|allowed| !allowed.contains(value)) {
        problems.push(format!("{place}: {value} is not one of {}", schema["enum"]));
    }
    if let Some(fields) = value.as_object() {
        for needed in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if !fields.contains_key(needed) {
                problems.push(format!("{place}: {needed} is missing"));
            }
        }
        for (name, value) in fields {
            let place = format!("{place}.{name}");
            match (&schema["properties"][name], &schema["additionalProperties"]) {
                (Value::Null, Value::Bool(false)) => problems.push(format!("{place}: no such field")),
                (Value::Null, Value::Object(_)) => check(all, &schema["additionalProperties"], value, &place, problems),
                (Value::Null, _) => {}
                (schema, _) => check(all, schema, value, &place, problems),
            }
        }
    }
    for (number, value) in value.as_array().into_iter().flatten().enumerate() {
        check(all, &schema["items"], value, &format!("{place}[{number}]"), problems);
    }
}

fn problems(all: &Value, object: &Value) -> Vec<String> {
    let is_it = |schema: &&Value| {
        let allowed = |field: &str| schema["properties"][field]["enum"] == json!([object[field]]);
        allowed("kind") && allowed("apiVersion")
    };
    let Some(schema) = all.as_object().unwrap().values().find(is_it) else {
        return vec![format!("there is no {} in {}", object["kind"], object["apiVersion"])];
    };
    let mut found = Vec::new();
    check(all, schema, object, object["kind"].as_str().unwrap(), &mut found);
    found
}

#[test]
fn the_manifests_follow_the_schema_of_kubernetes() {
    let definitions = definitions();
    for object in all() {
        assert_eq!(problems(&definitions, &object), Vec::<String>::new(), "{object:#}");
    }
    // It finds what it is for.
    for (from, to, expected) in [
        ("replicas: 2", "replicas: two", "is not integer"),
        ("containerPort: 7070", "containerPrt: 7070", "no such field"),
        ("containerPort: 7070", "containerPrt: 7070", "containerPort is missing"),
        ("kind: StatefulSet", "kind: StatefulSets", "there is no"),
        ("mountPath: /cache", "mountPath: [/cache]", "is not string"),
    ] {
        let text = read("node.yaml");
        assert!(text.contains(from), "{from}");
        let wrong = objects(&text.replacen(from, to, 1));
        let found: Vec<String> = wrong.iter().flat_map(|object| problems(&definitions, object)).collect();
        assert!(found.iter().any(|problem| problem.contains(expected)), "{to}: {found:?}");
    }
}

/// The workloads: their name, and the pods that they make.
fn workloads(all: &[Value]) -> Vec<(&Value, &Value)> {
    let made = all.iter().filter(|object| object["spec"]["template"].is_object());
    made.map(|object| (object, &object["spec"]["template"])).collect()
}

#[test]
fn the_objects_of_kubernetes_fit_together() {
    let all = all();
    let listed = objects(&read("kustomization.yaml")).remove(0);
    assert_eq!(listed["resources"], json!(FILES));
    let pods = workloads(&all);
    assert_eq!(pods.len(), 3);
    for (object, pod) in &pods {
        assert_eq!(object["spec"]["selector"]["matchLabels"], pod["metadata"]["labels"], "{}", object["metadata"]);
        let service = &object["spec"]["serviceName"];
        let is_it = |other: &&Value| other["kind"] == "Service" && other["metadata"]["name"] == *service;
        assert!(service.is_null() || all.iter().any(|other| is_it(&other)), "{service}");
        let container = &pod["spec"]["containers"][0];
        let ports: Vec<&Value> = container["ports"].as_array().unwrap().iter().map(|port| &port["name"]).collect();
        for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
            for way in ["tcpSocket", "httpGet"] {
                let port = &container[probe][way]["port"];
                assert!(port.is_null() || ports.contains(&port), "{probe} of {}", object["metadata"]);
            }
        }
        let volumes = pod["spec"]["volumes"].as_array().into_iter().flatten().map(|volume| &volume["name"]);
        let claims = object["spec"]["volumeClaimTemplates"].as_array().into_iter().flatten();
        let known: Vec<&Value> = volumes.chain(claims.map(|claim| &claim["metadata"]["name"])).collect();
        for mount in container["volumeMounts"].as_array().unwrap() {
            assert!(known.contains(&&mount["name"]), "{mount}");
        }
        let safe = &container["securityContext"];
        assert_eq!((&safe["allowPrivilegeEscalation"], &safe["readOnlyRootFilesystem"]), (&json!(false), &json!(true)));
    }
    for service in all.iter().filter(|object| object["kind"] == "Service") {
        let selects = |(_, pod): &&(&Value, &Value)| pod["metadata"]["labels"] == service["spec"]["selector"];
        let (_, pod) = pods.iter().find(selects).expect("a service has pods");
        for port in service["spec"]["ports"].as_array().unwrap() {
            let target = if port["targetPort"].is_null() { &port["port"] } else { &port["targetPort"] };
            let mut open = pod["spec"]["containers"][0]["ports"].as_array().unwrap().iter();
            assert!(open.any(|one| one["containerPort"] == *target || one["name"] == *target), "{port}");
        }
    }
}

/// The certificates, keys, variables and flags are those that the program makes and takes.
#[test]
fn the_manifests_name_settings_and_files_that_exist() {
    let folder = tempfile::tempdir().unwrap();
    let names = ["poncho-node-0.poncho-node", "poncho-node-1.poncho-node", "router"];
    run(poncho().args(["node", "cert", "--dir"]).arg(folder.path()).args(names)).good();
    let reference = std::fs::read_to_string(root().join("docs/configuration.md")).unwrap();
    let all = all();
    for (object, pod) in workloads(&all).into_iter().filter(|(object, _)| object["metadata"]["name"] != "nats") {
        let container = &pod["spec"]["containers"][0];
        for variable in container["env"].as_array().unwrap() {
            let name = variable["name"].as_str().unwrap();
            assert!(reference.contains(&format!("`{name}`")), "{name} is a setting");
            let value = variable["value"].as_str().unwrap_or_default();
            let Some(file) = value.strip_prefix("/certificates/").filter(|file| *file != "cluster.key") else {
                continue;
            };
            let file = file.replace("$(PONCHO_NODE_NAME)", "poncho-node-1");
            assert!(folder.path().join(&file).is_file(), "{file} in {}", object["metadata"]);
        }
        let words: Vec<&str> = container["args"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        let help = run(poncho().args([words[0], "--help"])).good().to_owned();
        assert!(words.iter().filter(|word| word.starts_with("--")).all(|flag| help.contains(flag)), "{words:?}");
    }
    let drain = run(poncho().args(["cluster", "drain", "--help"])).good().to_owned();
    assert!(drain.contains("<NODE>") && read("node.yaml").contains("poncho cluster drain"), "{drain}");
}
