//! Responses in which this server calls tools: the model replies, its calls are made, and it replies again with the results.
//!
//! Made by `create` for requests that use MCP servers. Calls that the client wants to approve end the response; the next
//! request makes them before it asks the model. The response owns its driver, so a client that goes away cancels the reply
//! and the call. Rounds, calls, times and sizes are bounded; a call that fails is a result for the model, never an error of
//! the response.

use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::pin;

use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use futures_util::future::{BoxFuture, FutureExt as _};
use futures_util::stream::{self, Stream};
use serde_json::{Map, Value};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::compose::tool_calls::WaitingCall;
use super::maker::Maker;
use super::mcp::McpServer;
use super::mcp::approval::ApprovedCall;
use super::{messages, turn};
use crate::error::ApiError;
use crate::http::body::Json;
use crate::http::heartbeat::Heartbeat;
use crate::http::reply::{Reply, ReplyEvent};
use crate::http::sse::{self, Events as _, Frame};
use crate::responses::item::Item;
use crate::responses::tool_server::{RemoteResult, ToolServerError, ToolSession};
use poncho_api::{Choice, Finish, Finished, Generate, Prompt};

/// Replies of the model in one response.
const MOST_ROUNDS: u32 = 32;
/// Calls in one response, unless the client wants fewer.
const MOST_CALLS: u32 = 64;
/// Bytes of a result. A longer one would fill the context of most models.
const MOST_RESULT: usize = 256 << 10;
/// Frames that are written ahead of the client.
const FRAMES_AHEAD: usize = 16;

/// See the module.
pub(crate) struct Rounds {
    maker: Maker,
    /// The request without its messages, for each further reply.
    again: Generate,
    instructions: Option<String>,
    servers: Vec<McpServer>,
    /// One for each server that was called: some tools remember what they did.
    sessions: HashMap<String, Box<dyn ToolSession>>,
    calls_left: u32,
    /// Whether the model was told that no call is left.
    is_told: bool,
    rounds_left: u32,
    /// Calls that are made before the model is asked.
    approved: Vec<ApprovedCall>,
    /// Where events go; `None` for a whole answer.
    out: Option<Sender<Frame>>,
    heartbeat: Heartbeat,
    /// When the stream was last heard of.
    sent: Instant,
}

impl Rounds {
    pub(crate) fn new(
        maker: Maker,
        mut again: Generate,
        instructions: Option<String>,
        servers: Vec<McpServer>,
        max_calls: Option<u32>,
    ) -> Self {
        if let Prompt::Chat(turn) = &mut again.prompt {
            turn.messages = Vec::new();
            // A choice holds for the first reply; a model that must call would never end.
            turn.choice = match std::mem::take(&mut turn.choice) {
                Choice::Among { names, .. } => Choice::Among { names, required: false },
                Choice::None => Choice::None,
                _ => Choice::Auto,
            };
        }
        Self {
            maker,
            again,
            instructions,
            servers,
            sessions: HashMap::new(),
            calls_left: max_calls.map_or(MOST_CALLS, |most| most.min(MOST_CALLS)),
            is_told: false,
            rounds_left: MOST_ROUNDS,
            approved: Vec::new(),
            out: None,
            heartbeat: Heartbeat::default(),
            sent: Instant::now(),
        }
    }

    /// The same with calls that the client approved. The model is asked when they have returned.
    pub(crate) fn after_approval(self, approved: Vec<ApprovedCall>) -> Self {
        Self { approved, ..self }
    }

    /// The whole answer. There are no replies yet if calls were approved.
    pub(crate) async fn whole(mut self, replies: Vec<Reply>) -> Result<Response, ApiError> {
        self.maker.composer.lists();
        let first = if self.approved.is_empty() { Some(only(replies)?) } else { None };
        self.run(first, None).await?;
        Ok(Json(&self.maker.response).into_response())
    }

    /// The answer as events. An error that comes at once is the status, as in all streams.
    pub(crate) async fn stream(mut self, replies: Vec<Reply>) -> Result<Response, ApiError> {
        if !self.approved.is_empty() {
            return Ok(self.respond(None, None));
        }
        let mut reply = only(replies)?;
        let mut first = None;
        let deadline = Instant::now() + sse::STATUS_WAIT;
        while let Ok(event) = timeout_at(deadline, reply.next()).await {
            match event {
                Some(ReplyEvent::Failed(error)) => return Err(error),
                Some(event @ (ReplyEvent::Started(_) | ReplyEvent::Progress(_))) => self.heartbeat.note(&event),
                other => {
                    first = other;
                    break;
                }
            }
        }
        Ok(self.respond(Some(reply), first))
    }

    fn respond(mut self, reply: Option<Reply>, first: Option<ReplyEvent>) -> Response {
        let (out, frames) = channel(FRAMES_AHEAD);
        self.out = Some(out);
        sse::response(events(self.drive(reply, first).boxed(), frames))
    }

    async fn drive(mut self, reply: Option<Reply>, first: Option<ReplyEvent>) {
        let mut frames = self.maker.start();
        frames.extend(self.maker.composer.lists());
        self.send(frames).await;
        if let Err(error) = self.run(reply, first).await {
            let frames = self.maker.failed(&error);
            self.send(frames).await;
        }
    }

    async fn run(&mut self, reply: Option<Reply>, mut first: Option<ReplyEvent>) -> Result<(), ApiError> {
        let mut reply = match reply {
            Some(reply) => reply,
            None => {
                for approved in std::mem::take(&mut self.approved) {
                    let frames = self.maker.composer.begin_approved(&approved);
                    self.send(frames).await;
                }
                let calls = self.maker.composer.waiting_calls();
                self.make(calls).await?;
                self.ask().await?
            }
        };
        loop {
            let finished = self.read(&mut reply, first.take()).await?;
            match self.after(finished).await? {
                Some(next) => reply = next,
                None => return Ok(()),
            }
        }
    }

    /// Reads a reply to its end.
    async fn read(&mut self, reply: &mut Reply, first: Option<ReplyEvent>) -> Result<Finished, ApiError> {
        let mut ready = first;
        loop {
            let event = match ready.take() {
                Some(event) => Some(event),
                None => self.patiently(reply.next()).await,
            };
            let event = event.ok_or(ApiError::Internal { doing: "read a reply" })?;
            self.heartbeat.note(&event);
            match event {
                ReplyEvent::Started(_) | ReplyEvent::Progress(_) => {}
                ReplyEvent::Delta(delta) => {
                    let frames = self.maker.composer.delta(delta);
                    self.send(frames).await;
                }
                ReplyEvent::Done(finished) => return Ok(*finished),
                ReplyEvent::Failed(error) => return Err(error),
            }
        }
    }

    /// Makes the calls of a reply; the next reply, or `None` if the response has ended.
    async fn after(&mut self, finished: Finished) -> Result<Option<Reply>, ApiError> {
        let (mut frames, finished) = self.maker.end_reply(finished);
        if finished.finish == Finish::Length {
            frames.extend(self.maker.composer.abandon_calls());
        }
        self.send(frames).await;
        let calls = self.maker.composer.waiting_calls();
        // A model that was told that no call is left has had its chance to answer.
        let is_last = calls.is_empty() || self.is_told || self.rounds_left <= 1 || self.maker.composer.awaits_client();
        self.make(calls).await?;
        if is_last {
            let frames = self.maker.finish_with(&finished);
            self.send(frames).await;
            return Ok(None);
        }
        self.next_reply(&finished).await.map(Some)
    }

    /// Makes calls, one after the other.
    async fn make(&mut self, calls: Vec<WaitingCall>) -> Result<(), ApiError> {
        for call in calls {
            let result = self.call(&call).await?;
            let frames = self.maker.composer.called(call.index, result);
            self.send(frames).await;
        }
        Ok(())
    }

    async fn next_reply(&mut self, finished: &Finished) -> Result<Reply, ApiError> {
        self.rounds_left -= 1;
        self.maker.count(finished);
        let request = &mut self.again.request;
        let used = u32::try_from(finished.completion.completion_tokens).unwrap_or(u32::MAX);
        request.max_tokens = request.max_tokens.map(|most| most.saturating_sub(used).max(1));
        self.ask().await
    }

    /// Asks the model with all that was said and called so far.
    async fn ask(&mut self) -> Result<Reply, ApiError> {
        let Maker { input, composer, .. } = &mut self.maker;
        composer.next_round();
        let items: Vec<&Item> = input.iter().map(|item| &**item).chain(composer.items()).collect();
        let mut asked = self.again.clone();
        if let Prompt::Chat(turn) = &mut asked.prompt {
            turn.messages = messages::messages(self.instructions.as_deref(), &items);
        }
        let in_pieces = self.out.is_some();
        only(self.maker.call.start(vec![asked], in_pieces).await.map_err(turn::in_this_api)?)
    }

    /// Makes a call. What fails is a text for the model.
    async fn call(&mut self, call: &WaitingCall) -> Result<Result<String, String>, ApiError> {
        let Some(left) = self.calls_left.checked_sub(1) else {
            self.is_told = true;
            return Ok(Err("no tool call is left in this response; answer with what is known".to_owned()));
        };
        self.calls_left = left;
        let Some(server) = self.servers.iter().find(|server| server.label == call.label).cloned() else {
            return Ok(Err(format!("there is no MCP server {:?} in this request", call.label)));
        };
        // An approval may be of a tool that the request does not allow.
        if !self.maker.composer.offers(&call.label, &call.name) {
            return Ok(Err(format!("the MCP server {:?} has no tool {:?} in this request", call.label, call.name)));
        }
        let Some(arguments) = read_arguments(&call.arguments) else {
            return Ok(Err("the arguments are not a JSON object; write them again".to_owned()));
        };
        let session = self.sessions.remove(&call.label);
        let work = async {
            let session = match session {
                Some(session) => session,
                None => server.server.connect(&server.headers).await?,
            };
            let result = session.call(&call.name, arguments).await;
            Ok::<_, ToolServerError>((session, result))
        };
        let origin = &self.maker.call.origin;
        let (limit, mut cut) = (origin.app.config.tool_timeout, origin.app.life.cut_signal());
        let (arrived, longest) = (origin.arrived, origin.app.config.request_timeout);
        let bounded = async {
            let too_long = async {
                match longest {
                    Some(limit) => sleep_until(arrived + limit).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = cut.received() => Err(ApiError::ShuttingDown),
                () = too_long => Err(ApiError::Timeout { limit: longest.unwrap_or_default() }),
                result = timeout(limit, work) => Ok(result),
            }
        };
        let begun = Instant::now();
        let late = |_| ToolServerError::Late { seconds: limit.as_secs() };
        let result = match self.patiently(bounded).await?.map_err(late).flatten() {
            Ok((session, result)) => {
                // A session that broke is opened again for the next call.
                if matches!(result, Ok(_) | Err(ToolServerError::Refused { .. })) {
                    self.sessions.insert(call.label.clone(), session);
                }
                result
            }
            Err(error) => Err(error),
        };
        let took_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        tracing::debug!(label = call.label, tool = call.name, took_ms, failed = result.is_err(), "called a tool");
        Ok(match result {
            Ok(RemoteResult { text, .. }) if text.len() > MOST_RESULT => {
                Err(ToolServerError::TooLarge { limit: MOST_RESULT }.to_string())
            }
            Ok(RemoteResult { text, is_error: false }) => Ok(text),
            Ok(RemoteResult { text, .. }) if text.is_empty() => Err("the tool failed and gave no reason".to_owned()),
            Ok(RemoteResult { text, .. }) => Err(text),
            Err(error) => Err(error.to_string()),
        })
    }

    /// Waits for something, and keeps the stream alive meanwhile.
    async fn patiently<T>(&mut self, work: impl Future<Output = T>) -> T {
        if self.out.is_none() {
            return work.await;
        }
        let keep_alive = self.maker.call.origin.app.config.stream_keep_alive;
        let mut work = pin!(work);
        loop {
            if let Ok(done) = timeout_at(self.sent + keep_alive, &mut work).await {
                return done;
            }
            let frames = self.maker.waiting(self.heartbeat);
            self.send(frames).await;
        }
    }

    async fn send(&mut self, frames: Vec<Frame>) {
        let Some(out) = &self.out else { return };
        for frame in frames {
            // A client that is gone drops this future with the response.
            let _ = out.send(frame).await;
        }
        self.sent = Instant::now();
    }
}

/// The reply to the one prompt.
fn only(replies: Vec<Reply>) -> Result<Reply, ApiError> {
    replies.into_iter().next().ok_or(ApiError::Internal { doing: "start a reply" })
}

/// The arguments of a call; a model may leave an empty object out.
fn read_arguments(text: &str) -> Option<Map<String, Value>> {
    if text.trim().is_empty() {
        return Some(Map::new());
    }
    serde_json::from_str(text).ok()
}

/// The events that a driver writes. The driver moves only while the client reads.
fn events(driver: BoxFuture<'static, ()>, frames: Receiver<Frame>) -> impl Stream<Item = Result<Event, Infallible>> {
    stream::unfold((Some(driver), frames), |(mut driver, mut frames)| async move {
        loop {
            let Some(running) = driver.as_mut() else {
                let frame = frames.recv().await?;
                return Some((Ok(frame.into()), (driver, frames)));
            };
            tokio::select! {
                biased;
                frame = frames.recv() => return Some((Ok(frame?.into()), (driver, frames))),
                () = running => driver = None,
            }
        }
    })
}
