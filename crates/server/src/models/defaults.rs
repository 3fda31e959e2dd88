//! What a model created from a Modelfile answers with where a request says nothing: system prompt, first messages,
//! template, sampling, stops.
//!
//! Read once when the model is loaded and shared by all its requests. It must never replace what a request says.

use serde_json::{Value, json};

use crate::error::ApiError;
use crate::library::ModelDefaults;
use crate::models::options::Options;
use crate::models::template::Template;
use poncho_api::{ChatTurn, Request};

/// See the module.
#[derive(Debug, Clone, Default)]
pub(crate) struct ServedDefaults {
    system: Option<String>,
    messages: Vec<Value>,
    /// In the language of chat templates, whatever the Modelfile had.
    template: Option<String>,
    /// As the Modelfile has it.
    written_template: Option<String>,
    generation: Request,
}

impl ServedDefaults {
    /// Checks what a library says about a model.
    pub(crate) fn new(defaults: &ModelDefaults) -> Result<Self, ApiError> {
        let options: Options = serde_json::from_value(Value::Object(defaults.parameters.clone()))
            .map_err(|error| ApiError::field("parameters", error.to_string()))?;
        let messages = defaults.messages.iter().map(|(role, content)| json!({"role": role, "content": content}));
        let template = defaults.template.as_deref().filter(|template| !template.trim().is_empty());
        Ok(Self {
            system: defaults.system.clone().filter(|system| !system.is_empty()),
            messages: messages.collect(),
            template: template.map(chat_template).transpose()?,
            written_template: template.map(str::to_owned),
            generation: options.generation(&Request::default())?,
        })
    }

    /// Sampling, stops and length.
    pub(crate) fn generation(&self) -> &Request {
        &self.generation
    }

    /// The system prompt.
    pub(crate) fn system(&self) -> Option<&str> {
        self.system.as_deref()
    }

    /// The chat template that stands for the model's own.
    pub(crate) fn template(&self) -> Option<&str> {
        self.template.as_deref()
    }

    /// The same template as the Modelfile has it.
    pub(crate) fn written_template(&self) -> Option<&str> {
        self.written_template.as_deref()
    }

    /// Adds to a turn what it leaves out. The first messages belong to a conversation that `begins` with it.
    pub(crate) fn complete(&self, turn: &mut ChatTurn, begins: bool) {
        turn.template = turn.template.take().or_else(|| self.template.clone());
        let is_system = |message: &Value| message.get("role") == Some(&json!("system"));
        let system = self.system.as_ref().filter(|_| !turn.messages.iter().any(is_system));
        let place = turn.messages.iter().take_while(|message| is_system(message)).count();
        if begins {
            turn.messages.splice(place..place, self.messages.iter().cloned());
        }
        if let Some(system) = system {
            turn.messages.insert(0, json!({"role": "system", "content": system}));
        }
    }
}

/// Whether a template is in Jinja, which has loops and macros; Go's, as far as it is taken, has neither.
pub(crate) fn is_program(template: &str) -> bool {
    template.contains("{%")
}

/// A template of a Modelfile as a chat template: Go's are rewritten, those of GGUF files are taken as they are.
fn chat_template(template: &str) -> Result<String, ApiError> {
    if is_program(template) {
        return Ok(template.to_owned());
    }
    let parsed = Template::parse(template)?;
    if !parsed.has_prompt() {
        let reason = "it has no place for the prompt; write {{ .Prompt }} where a message of the user belongs";
        return Err(ApiError::field("template", reason));
    }
    Ok(parsed.to_chat_template())
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;

    fn defaults(parameters: &Value) -> ModelDefaults {
        let parameters: Map<String, Value> = parameters.as_object().unwrap().clone();
        let messages = vec![("user".to_owned(), "Hi".to_owned()), ("assistant".to_owned(), "Ho".to_owned())];
        ModelDefaults { system: Some("Be kind.".to_owned()), template: None, messages, parameters }
    }

    fn turn(messages: &Value) -> ChatTurn {
        ChatTurn { messages: messages.as_array().unwrap().clone(), ..ChatTurn::default() }
    }

    #[test]
    fn only_what_is_missing_is_added() {
        let served = ServedDefaults::new(&defaults(&json!({}))).unwrap();
        let roles = |turn: &ChatTurn| -> Vec<String> {
            turn.messages.iter().map(|message| message["role"].as_str().unwrap().to_owned()).collect()
        };
        let plain = turn(&json!([{"role": "user", "content": "x"}]));
        let completed = |turn: &ChatTurn, defaults: &ServedDefaults| {
            let mut turn = turn.clone();
            defaults.complete(&mut turn, true);
            turn
        };
        let with_system = completed(&plain, &served);
        assert_eq!(roles(&with_system), ["system", "user", "assistant", "user"]);
        assert_eq!(with_system.messages[0]["content"], "Be kind.");
        let own = turn(&json!([{"role": "system", "content": "Be rude."}, {"role": "user", "content": "x"}]));
        let with_own = completed(&own, &served);
        assert_eq!(roles(&with_own), ["system", "user", "assistant", "user"]);
        assert_eq!(with_own.messages[0]["content"], "Be rude.");
        assert_eq!(completed(&plain, &ServedDefaults::default()), plain);
        let mut later = plain.clone();
        served.complete(&mut later, false);
        assert_eq!(roles(&later), ["system", "user"], "a conversation has its first messages once");
    }

    #[test]
    fn parameters_become_sampling_and_stops() {
        let parameters = json!({"temperature": 0.25, "top_k": 7, "stop": ["END"], "num_predict": 9, "num_ctx": 512});
        let served = ServedDefaults::new(&defaults(&parameters)).unwrap();
        let generation = served.generation();
        assert_eq!((generation.sampling.temperature, generation.sampling.top_k), (0.25, 7));
        assert_eq!((generation.max_tokens, generation.stop.as_slice()), (Some(9), ["END".to_owned()].as_slice()));
        for wrong in [json!({"temperature": "hot"}), json!({"temperature": -1}), json!({"num_ctx": "x"})] {
            assert!(ServedDefaults::new(&defaults(&wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_template_is_rewritten_or_refused() {
        let with = |template: &str| {
            ServedDefaults::new(&ModelDefaults { template: Some(template.to_owned()), ..ModelDefaults::default() })
        };
        let jinja = "{% for message in messages %}{{ message.content }}{% endfor %}";
        assert_eq!(with(jinja).unwrap().template(), Some(jinja));
        assert!(with("{{ .Prompt }}").unwrap().template().unwrap().contains("for message in messages"));
        assert!(with("{{ range .Messages }}{{ end }}").is_err());
        let placeless = with("{{ .System }} Answer:").unwrap_err().to_string();
        assert!(placeless.contains("{{ .Prompt }}"), "{placeless}");
        assert_eq!(with(" ").unwrap().template(), None);
    }
}
