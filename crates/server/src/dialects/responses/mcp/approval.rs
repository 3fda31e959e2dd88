//! Approval of tool calls: which calls of an MCP server a client wants to be asked about, and what it answered.
//!
//! Read by the parent module from a request; `create` makes the calls that were approved. As in OpenAI's API, a client that does not
//! mention approval is asked about every call. A call must never be made without an approval that the client wants.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde_json::Value;

use super::ToolFilter;
use crate::error::ApiError;
use crate::responses::item::Item;
use crate::responses::tool_server::RemoteTool;

/// Which calls need an approval.
#[derive(Debug, Clone, Default)]
pub(crate) enum Approval {
    #[default]
    Always,
    Never,
    /// All but `never`, except for those in `always`.
    ByTool {
        always: Option<ToolFilter>,
        never: Option<ToolFilter>,
    },
}

impl Approval {
    /// Reads `require_approval`.
    pub(crate) fn read(value: Option<&Value>, field: impl Fn() -> String) -> Result<Self, ApiError> {
        let wrong = || {
            let reason = "it must be \"always\", \"never\", or an object with the fields always and never, each with \
                tool_names";
            ApiError::field(field(), reason)
        };
        match value {
            None | Some(Value::Null) => Ok(Self::Always),
            Some(Value::String(word)) if word == "always" => Ok(Self::Always),
            Some(Value::String(word)) if word == "never" => Ok(Self::Never),
            Some(Value::Object(fields)) if fields.keys().all(|name| name == "always" || name == "never") => {
                let filter = |name: &str| match fields.get(name) {
                    None | Some(Value::Null) => Ok(None),
                    Some(filter @ Value::Object(_)) => ToolFilter::read(filter).map(Some).ok_or_else(wrong),
                    Some(_) => Err(wrong()),
                };
                Ok(Self::ByTool { always: filter("always")?, never: filter("never")? })
            }
            Some(_) => Err(wrong()),
        }
    }

    pub(crate) fn is_needed(&self, tool: &RemoteTool) -> bool {
        let has = |filter: &Option<ToolFilter>| filter.as_ref().is_some_and(|filter| filter.has(tool));
        match self {
            Self::Always => true,
            Self::Never => false,
            Self::ByTool { always, never } => has(always) || !has(never),
        }
    }
}

/// A call that was approved and not made yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ApprovedCall {
    pub(crate) request_id: String,
    pub(crate) label: String,
    pub(crate) name: String,
    pub(crate) arguments: String,
}

/// The approved calls of a conversation that were not made yet, in the order of their requests. A request that was sent
/// twice, as an item and with `previous_response_id`, is one call.
pub(crate) fn approved(conversation: &[Arc<Item>]) -> Vec<ApprovedCall> {
    let answers = Answers::of(conversation.iter().map(|item| &**item));
    let call = |item: &Arc<Item>| match &**item {
        Item::McpApprovalRequest { id, server_label, name, arguments } if answers.waits(id) => Some(ApprovedCall {
            request_id: id.clone(),
            label: server_label.clone(),
            name: name.clone(),
            arguments: arguments.clone(),
        }),
        _ => None,
    };
    let mut seen = HashSet::new();
    conversation.iter().filter_map(call).filter(|call| seen.insert(call.request_id.clone())).collect()
}

/// Refuses answers to requests that are not in the conversation, and second answers.
pub(crate) fn check(context: &[Arc<Item>], own: &[Arc<Item>], field: impl Fn(usize) -> String) -> Result<(), ApiError> {
    let mut open: HashSet<&str> = HashSet::new();
    let mut answered: HashSet<&str> = HashSet::new();
    for (at, item) in
        context.iter().map(|item| (None, item)).chain(own.iter().enumerate().map(|(at, item)| (Some(at), item)))
    {
        match &**item {
            Item::McpApprovalRequest { id, .. } => {
                open.insert(id);
            }
            Item::McpApprovalResponse { approval_request_id, .. } => {
                let is_open = open.contains(approval_request_id.as_str());
                let is_first = answered.insert(approval_request_id);
                if let Some(at) = at.filter(|_| !is_open || !is_first) {
                    let reason = if is_open {
                        format!("{approval_request_id:?} was answered before; answer it once")
                    } else {
                        format!(
                            "there is no approval request {approval_request_id:?} before it; send the request before \
                             its answer, or name its response as previous_response_id"
                        )
                    };
                    return Err(ApiError::field(field(at), reason));
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// What became of the approval requests of a conversation.
#[derive(Debug, Default)]
pub(crate) struct Answers<'c> {
    requests: HashSet<&'c str>,
    answers: HashMap<&'c str, (bool, Option<&'c str>)>,
    /// The results of calls, by their requests.
    results: HashMap<&'c str, &'c str>,
}

impl<'c> Answers<'c> {
    pub(crate) fn of(items: impl Iterator<Item = &'c Item>) -> Self {
        let mut all = Self::default();
        for item in items {
            match item {
                Item::McpApprovalRequest { id, .. } => {
                    all.requests.insert(id);
                }
                Item::McpApprovalResponse { approval_request_id, approve, reason, .. } => {
                    all.answers.insert(approval_request_id, (*approve, reason.as_deref()));
                }
                Item::McpCall { approval_request_id: Some(id), output, error, .. } => {
                    all.results.insert(id, error.as_ref().or(output.as_ref()).map_or("", String::as_str));
                }
                _ => {}
            }
        }
        all
    }

    /// Whether a call is approved and waits to be made.
    fn waits(&self, request_id: &str) -> bool {
        !self.results.contains_key(request_id) && self.answers.get(request_id).is_some_and(|(approve, _)| *approve)
    }

    /// Whether a call is the outcome of a request in the conversation, and is shown in its place.
    pub(crate) fn shows(&self, request_id: Option<&str>) -> bool {
        request_id.is_some_and(|id| self.requests.contains(id))
    }

    /// What the model reads as the result of the call that a request asks about.
    pub(crate) fn result(&self, request_id: &str) -> String {
        match (self.results.get(request_id), self.answers.get(request_id)) {
            (Some(result), _) => (*result).to_owned(),
            (None, Some((false, Some(reason)))) => format!("the user did not approve this call: {reason}"),
            (None, Some((false, None))) => "the user did not approve this call".to_owned(),
            (None, Some((true, _))) => String::new(),
            (None, None) => "the user has not approved this call yet".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tool(name: &str, reads: bool) -> RemoteTool {
        serde_json::from_value(json!({"name": name, "input_schema": {}, "annotations": {"readOnlyHint": reads}}))
            .unwrap()
    }

    fn asked(value: &Value) -> Vec<bool> {
        let approval = Approval::read(Some(value), || "f".to_owned()).unwrap();
        [tool("look", true), tool("write", false)].map(|tool| approval.is_needed(&tool)).to_vec()
    }

    #[test]
    fn a_client_is_asked_unless_it_says_otherwise() {
        assert_eq!(asked(&Value::Null), [true, true]);
        assert_eq!(asked(&json!("always")), [true, true]);
        assert_eq!(asked(&json!("never")), [false, false]);
        assert_eq!(asked(&json!({"never": {"tool_names": ["look"]}})), [false, true]);
        assert_eq!(asked(&json!({"never": {"read_only": true}})), [false, true]);
        assert_eq!(asked(&json!({"always": {"tool_names": ["write"]}})), [true, true], "others are asked about too");
        assert_eq!(asked(&json!({"always": {"tool_names": ["look"]}, "never": {}})), [true, false]);
        for wrong in [json!("sometimes"), json!(true), json!(["look"]), json!({"never": ["look"]}), json!({"nver": {}})]
        {
            assert!(Approval::read(Some(&wrong), || "f".to_owned()).is_err(), "{wrong}");
        }
    }

    fn request(id: &str) -> Arc<Item> {
        let (server_label, name, arguments) = ("docs".to_owned(), "look".to_owned(), "{}".to_owned());
        Arc::new(Item::McpApprovalRequest { id: id.to_owned(), server_label, name, arguments })
    }

    fn answer(id: &str, approve: bool) -> Arc<Item> {
        let approval_request_id = id.to_owned();
        Arc::new(Item::McpApprovalResponse { id: "a".to_owned(), approval_request_id, approve, reason: None })
    }

    #[test]
    fn only_approved_calls_that_were_not_made_are_made() {
        let made = Arc::new(Item::McpCall {
            id: "c".to_owned(),
            server_label: "docs".to_owned(),
            name: "look".to_owned(),
            arguments: "{}".to_owned(),
            output: Some("seen".to_owned()),
            error: None,
            approval_request_id: Some("made".to_owned()),
            status: crate::responses::item::Status::Completed,
        });
        let items = [
            request("made"),
            request("open"),
            request("no"),
            request("yes"),
            answer("made", true),
            made,
            answer("no", false),
            answer("yes", true),
        ];
        let waiting: Vec<String> = approved(&items).into_iter().map(|call| call.request_id).collect();
        assert_eq!(waiting, ["yes"]);
        let answers = Answers::of(items.iter().map(|item| &**item));
        let results = ["made", "open", "no"].map(|id| answers.result(id));
        assert_eq!(results, ["seen", "the user has not approved this call yet", "the user did not approve this call"]);
    }

    #[test]
    fn a_request_that_is_sent_twice_is_one_call() {
        assert_eq!(approved(&[request("r"), request("r"), answer("r", true)]).len(), 1);
    }

    #[test]
    fn an_answer_needs_a_request_and_is_given_once() {
        let field = |at: usize| format!("input[{at}]");
        assert!(check(&[request("r")], &[answer("r", true)], field).is_ok());
        assert!(check(&[], &[request("r"), answer("r", true)], field).is_ok());
        assert!(check(&[], &[answer("r", true)], field).is_err());
        assert!(check(&[request("r")], &[answer("r", false), answer("r", true)], field).is_err());
    }
}
