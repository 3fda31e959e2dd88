//! The agents: what each needs, and the settings that point it at a server.
//!
//! A flat table and one function for each agent. The settings are those of docs/agents.md, which `make agents` tests. Each
//! function uses the strongest source that the agent has, so that the user's own settings are neither used nor changed.

use serde_json::{Value, json};

use super::setup::{FOLDER, Setup, Target};

/// A coding agent.
#[derive(Debug)]
pub(crate) struct Agent {
    /// As `poncho launch` knows it.
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// On PATH.
    pub(crate) program: &'static str,
    /// How to install it.
    pub(crate) install: &'static str,
    /// The smallest context in which it can work: its system prompt and its tools take most of it.
    pub(crate) least_context: usize,
    pub(crate) needs_tools: bool,
    settings: fn(&Target) -> Setup,
}

impl Agent {
    /// What it gets for a target.
    pub(crate) fn setup(&self, target: &Target) -> Setup {
        (self.settings)(target)
    }
}

/// All of them, the most used first.
pub(crate) const AGENTS: [Agent; 8] = [
    Agent {
        name: "claude",
        title: "Claude Code",
        program: "claude",
        install: "npm install -g @anthropic-ai/claude-code",
        least_context: 32768,
        needs_tools: true,
        settings: claude,
    },
    Agent {
        name: "codex",
        title: "Codex",
        program: "codex",
        install: "npm install -g @openai/codex",
        least_context: 32768,
        needs_tools: true,
        settings: codex,
    },
    Agent {
        name: "opencode",
        title: "opencode",
        program: "opencode",
        install: "npm install -g opencode-ai",
        least_context: 32768,
        needs_tools: true,
        settings: opencode,
    },
    Agent {
        name: "aider",
        title: "aider",
        program: "aider",
        install: "pip install aider-chat",
        least_context: 8192,
        needs_tools: false,
        settings: aider,
    },
    Agent {
        name: "pi",
        title: "pi",
        program: "pi",
        install: "npm install -g @mariozechner/pi-coding-agent",
        least_context: 16384,
        needs_tools: true,
        settings: pi,
    },
    Agent {
        name: "continue",
        title: "Continue",
        program: "cn",
        install: "npm install -g @continuedev/cli",
        least_context: 16384,
        needs_tools: true,
        settings: continue_,
    },
    Agent {
        name: "goose",
        title: "goose",
        program: "goose",
        install: "see https://block.github.io/goose",
        least_context: 16384,
        needs_tools: true,
        settings: goose,
    },
    Agent {
        name: "qwen",
        title: "Qwen Code",
        program: "qwen",
        install: "npm install -g @qwen-code/qwen-code",
        least_context: 32768,
        needs_tools: true,
        settings: qwen,
    },
];

/// How long Claude Code waits for the first token of a reply, and for a reply without a stream: an hour.
const CLAUDE_PATIENCE_MS: &str = "3600000";

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}

/// The variables, and the same as settings of the command line: those win over the user's own settings file.
fn claude(target: &Target) -> Setup {
    let model = &target.model;
    let variables = vec![
        ("ANTHROPIC_BASE_URL", target.url.clone()),
        ("ANTHROPIC_AUTH_TOKEN", target.key()),
        ("ANTHROPIC_MODEL", model.clone()),
        ("ANTHROPIC_DEFAULT_OPUS_MODEL", model.clone()),
        ("ANTHROPIC_DEFAULT_SONNET_MODEL", model.clone()),
        ("ANTHROPIC_DEFAULT_HAIKU_MODEL", model.clone()),
        ("CLAUDE_CODE_MAX_CONTEXT_TOKENS", target.context.to_string()),
        ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1".to_owned()),
        // Pings do not count for it: it would give up on a prompt that takes longer than 300 s.
        ("CLAUDE_STREAM_IDLE_TIMEOUT_MS", CLAUDE_PATIENCE_MS.to_owned()),
        ("API_TIMEOUT_MS", CLAUDE_PATIENCE_MS.to_owned()),
    ];
    let env: serde_json::Map<String, Value> =
        variables.iter().map(|(name, value)| ((*name).to_owned(), value.clone().into())).collect();
    Setup {
        files: vec![("settings.json", pretty(&json!({"env": env})))],
        variables,
        removed: vec!["ANTHROPIC_API_KEY"],
        arguments: vec!["--settings".to_owned(), format!("{FOLDER}/settings.json")],
        ..Setup::default()
    }
}

/// Overrides of the configuration on the command line; the key comes from a variable.
fn codex(target: &Target) -> Setup {
    // A JSON string is a TOML string.
    let text = |value: &str| json!(value).to_string();
    let provider = |field: &str, value: &str| format!("model_providers.poncho.{field}={}", text(value));
    let overrides = [
        format!("model={}", text(&target.model)),
        format!("model_provider={}", text("poncho")),
        format!("model_context_window={}", target.context),
        provider("name", "Poncho"),
        provider("base_url", &target.v1()),
        provider("wire_api", "responses"),
        provider("env_key", "PONCHO_API_KEY"),
    ];
    Setup {
        variables: vec![("PONCHO_API_KEY", target.key())],
        arguments: overrides.into_iter().flat_map(|change| ["-c".to_owned(), change]).collect(),
        ..Setup::default()
    }
}

/// A configuration in a variable, which wins over the files of the user and of the project.
fn opencode(target: &Target) -> Setup {
    let limit = json!({"context": target.context, "output": target.output()});
    let name = format!("poncho/{}", target.model);
    let config = json!({
        "$schema": "https://opencode.ai/config.json",
        "model": name,
        "small_model": name,
        "provider": {
            "poncho": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "Poncho",
                "options": {"baseURL": target.v1(), "apiKey": target.key()},
                "models": {&target.model: {"name": target.model, "limit": limit}},
            },
        },
    });
    Setup { variables: vec![("OPENCODE_CONFIG_CONTENT", config.to_string())], ..Setup::default() }
}

/// Variables, and a file with the size of the context.
fn aider(target: &Target) -> Setup {
    let name = format!("openai/{}", target.model);
    let window = json!({
        &name: {
            "max_input_tokens": target.context,
            "max_output_tokens": target.output(),
            "max_tokens": target.output(),
            "input_cost_per_token": 0,
            "output_cost_per_token": 0,
            "litellm_provider": "openai",
            "mode": "chat",
        },
    });
    Setup {
        variables: vec![
            ("AIDER_OPENAI_API_BASE", target.v1()),
            ("AIDER_OPENAI_API_KEY", target.key()),
            ("AIDER_MODEL", name),
            ("AIDER_SHOW_MODEL_WARNINGS", "false".to_owned()),
            ("AIDER_MODEL_METADATA_FILE", format!("{FOLDER}/model-metadata.json")),
        ],
        files: vec![("model-metadata.json", pretty(&window))],
        ..Setup::default()
    }
}

/// Its folder, with the user's entries in it and another list of models.
fn pi(target: &Target) -> Setup {
    let model = json!({
        "id": target.model,
        "name": target.model,
        "reasoning": false,
        "input": ["text"],
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
        "contextWindow": target.context,
        "maxTokens": target.output(),
    });
    let provider =
        json!({"baseUrl": target.v1(), "api": "openai-completions", "apiKey": target.key(), "models": [model]});
    Setup {
        variables: vec![("PI_CODING_AGENT_DIR", FOLDER.to_owned())],
        files: vec![("models.json", pretty(&json!({"providers": {"poncho": provider}})))],
        linked: Some(".pi/agent"),
        arguments: ["--provider", "poncho", "--model", &target.model].map(str::to_owned).to_vec(),
        ..Setup::default()
    }
}

/// A configuration file of its own. JSON is YAML.
fn continue_(target: &Target) -> Setup {
    let model = json!({
        "name": target.model,
        "provider": "openai",
        "model": target.model,
        "apiBase": target.v1(),
        "apiKey": target.key(),
        "roles": ["chat", "edit", "apply"],
        "defaultCompletionOptions": {"contextLength": target.context, "maxTokens": target.output()},
    });
    let config = json!({"name": "Poncho", "version": "0.0.1", "schema": "v1", "models": [model]});
    Setup {
        files: vec![("config.yaml", pretty(&config))],
        arguments: vec!["--config".to_owned(), format!("{FOLDER}/config.yaml")],
        ..Setup::default()
    }
}

fn goose(target: &Target) -> Setup {
    Setup {
        variables: vec![
            ("GOOSE_PROVIDER", "openai".to_owned()),
            ("GOOSE_MODEL", target.model.clone()),
            ("GOOSE_CONTEXT_LIMIT", target.context.to_string()),
            ("OPENAI_HOST", target.url.clone()),
            ("OPENAI_API_KEY", target.key()),
        ],
        removed: vec!["OPENAI_BASE_PATH"],
        ..Setup::default()
    }
}

fn qwen(target: &Target) -> Setup {
    Setup {
        variables: vec![
            ("OPENAI_BASE_URL", target.v1()),
            ("OPENAI_API_KEY", target.key()),
            ("OPENAI_MODEL", target.model.clone()),
        ],
        arguments: vec!["--auth-type".to_owned(), "openai".to_owned()],
        ..Setup::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_agent_gets_the_address_the_model_and_the_window() {
        let target = Target {
            url: "http://127.0.0.1:4321".to_owned(),
            key: Some("a-key".to_owned()),
            model: "a-model".to_owned(),
            context: 54321,
        };
        for agent in &AGENTS {
            let setup = agent.setup(&target);
            let everything = format!("{setup:?}");
            for part in ["127.0.0.1:4321", "a-key", "a-model"] {
                assert!(everything.contains(part), "{}: {part}", agent.name);
            }
            // Qwen Code has no setting for it and learns the window from the errors of the server.
            assert!(everything.contains("54321") || agent.name == "qwen", "{}", agent.name);
        }
    }

    #[test]
    fn names_are_unique() {
        for (at, agent) in AGENTS.iter().enumerate() {
            let others = AGENTS.iter().skip(at + 1);
            assert!(others.clone().all(|other| other.name != agent.name && other.program != agent.program));
        }
    }
}
