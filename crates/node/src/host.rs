//! The end of the protocol that has the engine: serves a node on a Unix socket, and in `network` on a port.
//!
//! Run by the process that computes. A call that its caller gave up is dropped, which gives the work up. It must never
//! answer a caller of another version.

pub(crate) mod network;

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream};
use futures_util::{FutureExt as _, StreamExt as _, TryFutureExt as _};
use poncho_api::{EngineError, Node, NodeModel, ReplyStream};
use tokio::io::AsyncReadExt as _;
use tokio::net::UnixListener;
use tokio::sync::{Notify, watch};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::body::Body;
use tonic::server::{Grpc, NamedService};
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use tower::{Service, service_fn};

use crate::codec::{LARGEST, Packed};
use crate::methods::{self, Accepted, Method, ModelNow, ModelSnapshot, SERVICE, Snapshot, VERSION, VERSION_HEADER};

/// How often a watcher's snapshot is compared with the node.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// A reply that nobody claims is dropped after this time, which cancels it.
const CLAIM_WITHIN: Duration = Duration::from_secs(30);
/// Replies that one connection may carry at once; the queue of the engine refuses long before.
const MOST_STREAMS: u32 = 10_000;

/// Why a node stopped serving.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// It was asked to: states are to be saved.
    Asked,
    /// The process that it served is gone. A node that goes on alone would hold the cache folder.
    ParentGone,
}

/// Serves a node for the process that started this one, on a socket in a folder that only its user can enter. Returns
/// when that process wants it to end or is gone itself.
///
/// # Errors
/// The socket cannot be served.
pub async fn serve_parent(socket: &Path, node: Arc<dyn Node>) -> io::Result<Ended> {
    let listener = UnixListener::bind(socket)?;
    let stop = Arc::new(Notify::new());
    let (_goes_on, ending) = watch::channel(false);
    let served = Served { node, stop: Some(Arc::clone(&stop)), ending, tickets: Tickets::default() };
    let served = Server::builder()
        .max_concurrent_streams(Some(MOST_STREAMS))
        .add_service(NodeService(Arc::new(served)))
        .serve_with_incoming(UnixListenerStream::new(listener));
    tokio::select! {
        ended = served => ended.map(|()| Ended::Asked).map_err(io::Error::other),
        () = stop.notified() => Ok(Ended::Asked),
        () = parent_is_gone() => Ok(Ended::ParentGone),
    }
}

/// Waits for the end of the process that started this one: the other end of standard input is closed with it, however it
/// ends.
pub async fn parent_is_gone() {
    let mut stdin = tokio::io::stdin();
    let mut byte = [0];
    while stdin.read(&mut byte).await.is_ok_and(|read| read > 0) {}
}

struct Served {
    node: Arc<dyn Node>,
    /// Only the process that started this one may end it.
    stop: Option<Arc<Notify>>,
    /// Whether the node is about to end: it sends no snapshots from then on, and callers look for another one.
    ending: watch::Receiver<bool>,
    tickets: Tickets,
}

/// Replies that were started and not claimed yet.
#[derive(Default)]
struct Tickets {
    next: AtomicU64,
    open: Arc<Mutex<HashMap<u64, ReplyStream>>>,
}

impl Tickets {
    /// Keeps a reply until it is claimed, for a while.
    fn put(&self, reply: ReplyStream) -> u64 {
        let ticket = self.next.fetch_add(1, Ordering::Relaxed);
        lock(&self.open).insert(ticket, reply);
        let open = Arc::clone(&self.open);
        tokio::spawn(async move {
            tokio::time::sleep(CLAIM_WITHIN).await;
            drop(lock(&open).remove(&ticket));
        });
        ticket
    }

    fn take(&self, ticket: u64) -> Option<ReplyStream> {
        lock(&self.open).remove(&ticket)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Nothing that holds it can panic halfway.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The service as tonic calls it.
#[derive(Clone)]
struct NodeService(Arc<Served>);

impl NamedService for NodeService {
    const NAME: &'static str = SERVICE;
}

type HttpRequest = http::Request<Body>;
type HttpResponse = http::Response<Body>;
type Answering = Pin<Box<dyn Future<Output = Result<HttpResponse, Infallible>> + Send>>;

impl Service<HttpRequest> for NodeService {
    type Response = HttpResponse;
    type Error = Infallible;
    type Future = Answering;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: HttpRequest) -> Answering {
        let served = Arc::clone(&self.0);
        if let Err(status) = check_version(&request) {
            return Box::pin(async move { Ok(status.into_http()) });
        }
        route(served, request)
    }
}

fn check_version(request: &HttpRequest) -> Result<(), Status> {
    let theirs = request.headers().get(VERSION_HEADER).and_then(|version| version.to_str().ok());
    if theirs == Some(VERSION.to_string().as_str()) {
        return Ok(());
    }
    Err(Status::failed_precondition(format!(
        "the node speaks version {VERSION} of the protocol and the caller version {}; run the same release on both",
        theirs.unwrap_or("unknown")
    )))
}

/// The handler of one request as tonic calls it.
fn once<A, T, F>(
    served: Arc<Served>,
    answer: impl FnOnce(Arc<Served>, A) -> F + Send + 'static,
) -> impl FnMut(Request<A>) -> BoxFuture<'static, Result<Response<T>, Status>>
where
    F: Future<Output = Result<T, Status>> + Send + 'static,
{
    let mut once = Some((served, answer));
    move |request| {
        let started = once.take().map(|(served, answer)| answer(served, request.into_inner()));
        async move {
            match started {
                Some(answer) => Ok(Response::new(answer.await?)),
                None => Err(Status::internal("a call came twice")),
            }
        }
        .boxed()
    }
}

fn grpc<M: Method>() -> Grpc<Packed<M::Answer, M::Ask>> {
    Grpc::new(Packed::default()).max_decoding_message_size(LARGEST).max_encoding_message_size(LARGEST)
}

/// One answer to one question.
fn unary<M: Method + 'static, F>(
    served: Arc<Served>,
    request: HttpRequest,
    answer: impl FnOnce(Arc<Served>, M::Ask) -> F + Send + 'static,
) -> Answering
where
    F: Future<Output = M::Answer> + Send + 'static,
{
    let service = service_fn(once(served, move |served, ask| answer(served, ask).map(Ok)));
    Box::pin(async move { Ok(grpc::<M>().unary(service, request).await) })
}

/// Many answers to one question.
fn streaming<M: Method + 'static, F>(
    served: Arc<Served>,
    request: HttpRequest,
    answer: impl FnOnce(Arc<Served>, M::Ask) -> F + Send + 'static,
) -> Answering
where
    F: Future<Output = Result<BoxStream<'static, M::Answer>, Status>> + Send + 'static,
{
    let answers = move |served, ask| answer(served, ask).map_ok(|answers| answers.map(Ok::<M::Answer, Status>));
    let service = service_fn(once(served, answers));
    Box::pin(async move { Ok(grpc::<M>().server_streaming(service, request).await) })
}

impl Served {
    fn model(&self, id: &str) -> Result<Arc<dyn NodeModel>, EngineError> {
        self.node.model(id).ok_or_else(|| EngineError::UnknownModel { model: id.to_owned() })
    }

    fn snapshot(&self) -> Snapshot {
        let models = self.node.models();
        let models = models.iter().map(|model| ModelSnapshot {
            report: model.report().clone(),
            now: ModelNow {
                status: model.status(),
                requests: model.requests(),
                sessions: model.sessions(),
                adapters: model.adapters(),
                is_file_changed: model.is_file_changed(),
            },
        });
        Snapshot { models: models.collect(), cache: self.node.cache(), hygiene: self.node.hygiene() }
    }
}

/// A call of a model that may fail.
macro_rules! of_model {
    ($method:ty, $served:ident, $request:ident, |$model:ident, $($ask:ident),*| $call:expr) => {
        unary::<$method, _>($served, $request, |served, ask| async move {
            #[allow(unused_parens, reason = "one question is not a tuple")]
            let (id, $($ask),*) = ask;
            let $model = served.model(&id)?;
            $call.await
        })
    };
}

/// A call of a model that cannot fail: of one that is gone, the answer says nothing.
macro_rules! told_by_model {
    ($method:ty, $served:ident, $request:ident, $gone:expr, |$model:ident| $call:expr) => {
        unary::<$method, _>($served, $request, |served, id| async move {
            match served.model(&id) {
                Ok($model) => $call.await,
                Err(_) => $gone,
            }
        })
    };
}

fn route(served: Arc<Served>, request: HttpRequest) -> Answering {
    use methods as m;
    match request.uri().path() {
        m::Look::PATH => unary::<m::Look, _>(served, request, |served, ()| async move { served.snapshot() }),
        m::Watch::PATH => streaming::<m::Watch, _>(served, request, |served, ()| async move { Ok(watch(served)) }),
        m::Stop::PATH => match served.stop.clone() {
            Some(stop) => unary::<m::Stop, _>(served, request, move |_, ()| async move { stop.notify_one() }),
            None => {
                let status = Status::permission_denied("a node on the network is ended on its own machine");
                Box::pin(async move { Ok(status.into_http()) })
            }
        },
        m::Load::PATH => {
            streaming::<m::Load, _>(served, request, |served, model| async move { Ok(served.node.load(model).boxed()) })
        }
        m::Unload::PATH => {
            unary::<m::Unload, _>(served, request, |served, id| async move { served.node.unload(&id).await })
        }
        m::FootprintOf::PATH => {
            unary::<m::FootprintOf, _>(
                served,
                request,
                |served, model| async move { served.node.footprint(&model).await },
            )
        }
        m::ModelFileOf::PATH => unary::<m::ModelFileOf, _>(served, request, |served, (path, longest)| async move {
            served.node.model_file(&path, longest).await
        }),
        m::CacheRows::PATH => unary::<m::CacheRows, _>(served, request, |served, (owner, offset, limit)| async move {
            served.node.cache_rows(owner, offset, limit).await
        }),
        m::FollowRows::PATH => {
            streaming::<m::FollowRows, _>(
                served,
                request,
                |served, ()| async move { Ok(served.node.follow_rows().boxed()) },
            )
        }
        m::EvictBytes::PATH => unary::<m::EvictBytes, _>(served, request, |served, (owner, bytes, tiers)| async move {
            served.node.evict_bytes(owner, bytes, &tiers).await
        }),
        m::RemoveRow::PATH => unary::<m::RemoveRow, _>(served, request, |served, (owner, key)| async move {
            served.node.remove_row(owner, key).await
        }),
        m::PinRow::PATH => unary::<m::PinRow, _>(served, request, |served, (owner, key)| async move {
            served.node.pin_row(owner, key).await
        }),
        m::UnpinRow::PATH => unary::<m::UnpinRow, _>(served, request, |served, (owner, key)| async move {
            served.node.unpin_row(owner, key).await
        }),
        m::VerifyRow::PATH => unary::<m::VerifyRow, _>(served, request, |served, (owner, key)| async move {
            served.node.verify_row(owner, key).await
        }),
        m::RowTokensOf::PATH => unary::<m::RowTokensOf, _>(served, request, |served, (owner, key)| async move {
            served.node.row_tokens(owner, key).await
        }),
        m::Evictions::PATH => {
            unary::<m::Evictions, _>(served, request, |served, ()| async move { served.node.evictions().await })
        }
        m::ClearCache::PATH => {
            unary::<m::ClearCache, _>(served, request, |served, ()| async move { served.node.clear_cache().await })
        }
        m::CollectGarbage::PATH => {
            unary::<m::CollectGarbage, _>(
                served,
                request,
                |served, ()| async move { served.node.collect_garbage().await },
            )
        }
        m::LookAtFile::PATH => told_by_model!(m::LookAtFile, served, request, false, |model| model.look_at_file()),
        m::Files::PATH => told_by_model!(m::Files, served, request, Default::default(), |model| model.files()),
        m::FootprintNow::PATH => {
            told_by_model!(m::FootprintNow, served, request, Default::default(), |model| model.footprint())
        }
        m::GenerateReplies::PATH => {
            streaming::<m::GenerateReplies, _>(served, request, |served, (id, prompts)| async move {
                let started = match served.model(&id) {
                    Ok(model) => model.generate(prompts).await,
                    Err(error) => Err(error),
                };
                Ok(accepted(&served, started))
            })
        }
        m::Claim::PATH => streaming::<m::Claim, _>(served, request, |served, ticket| async move {
            let reply = served.tickets.take(ticket);
            reply.map(|reply| reply.boxed()).ok_or_else(|| Status::not_found("the reply was claimed or cancelled"))
        }),
        m::Render::PATH => of_model!(m::Render, served, request, |model, prompt| model.render(prompt)),
        m::Explain::PATH => of_model!(m::Explain, served, request, |model, prompt, found| model.explain(prompt, found)),
        m::Tokenize::PATH => of_model!(m::Tokenize, served, request, |model, text, mode| model.tokenize(text, mode)),
        m::Detokenize::PATH => {
            of_model!(m::Detokenize, served, request, |model, tokens, special| model.detokenize(tokens, special))
        }
        m::TokenBytes::PATH => of_model!(m::TokenBytes, served, request, |model, tokens| model.token_bytes(tokens)),
        m::EmbeddingInputs::PATH => {
            of_model!(m::EmbeddingInputs, served, request, |model, inputs, cut| model.embedding_inputs(inputs, cut))
        }
        m::EmbeddingBytes::PATH => unary::<m::EmbeddingBytes, _>(served, request, |served, (id, longest)| async move {
            match served.model(&id) {
                Ok(model) => model.embedding_bytes(longest).await,
                Err(_) => 0,
            }
        }),
        m::Embed::PATH => of_model!(m::Embed, served, request, |model, inputs, unit| model.embed(inputs, unit)),
        m::CapabilitiesOf::PATH => {
            unary::<m::CapabilitiesOf, _>(served, request, |served, (id, template)| async move {
                match served.model(&id) {
                    Ok(model) => model.capabilities(template).await,
                    Err(_) => crate::remote::NO_CAPABILITIES,
                }
            })
        }
        m::ChatTemplate::PATH => told_by_model!(m::ChatTemplate, served, request, None, |model| model.chat_template()),
        m::EndSession::PATH => of_model!(m::EndSession, served, request, |model, name| model.end_session(&name)),
        m::Verify::PATH => of_model!(m::Verify, served, request, |model, prefix, draft| model.verify(prefix, draft)),
        m::Draft::PATH => of_model!(m::Draft, served, request, |model, prefix, count| model.draft(prefix, count)),
        m::LoadAdapter::PATH => {
            of_model!(m::LoadAdapter, served, request, |model, path, scale| model.load_adapter(&path, scale))
        }
        m::UnloadAdapter::PATH => of_model!(m::UnloadAdapter, served, request, |model, id| model.unload_adapter(id)),
        m::SetAdapterScale::PATH => {
            of_model!(m::SetAdapterScale, served, request, |model, adapter, scale| model
                .set_adapter_scale(adapter, scale))
        }
        m::Evict::PATH => {
            unary::<m::Evict, _>(served, request, |served, id| async move { served.model(&id)?.evict().await })
        }
        other => {
            let status = Status::unimplemented(format!("the node has no call {other}"));
            Box::pin(async move { Ok(status.into_http()) })
        }
    }
}

/// The first answer, and the events of a single reply.
fn accepted(served: &Served, started: Result<Vec<ReplyStream>, EngineError>) -> BoxStream<'static, Accepted> {
    let mut replies = match started {
        Ok(replies) => replies,
        Err(error) => return stream::iter([Accepted::Refused(error)]).boxed(),
    };
    if replies.len() == 1
        && let Some(reply) = replies.pop()
    {
        return stream::iter([Accepted::One]).chain(reply.map(Accepted::Event)).boxed();
    }
    let tickets = replies.into_iter().map(|reply| served.tickets.put(reply)).collect();
    stream::iter([Accepted::Tickets(tickets)]).boxed()
}

/// The snapshot, and again each time that it differs, until the node is about to end.
fn watch(served: Arc<Served>) -> BoxStream<'static, Snapshot> {
    let mut ending = served.ending.clone();
    let ended = async move {
        // A sender that is gone is a node that ends as well.
        let _ = ending.wait_for(|is_ending| *is_ending).await;
    };
    let snapshots = stream::unfold((served, None), |(served, last): (_, Option<Snapshot>)| async move {
        loop {
            if last.is_some() {
                tokio::time::sleep(LOOK_EVERY).await;
            }
            let now = served.snapshot();
            if last.as_ref() != Some(&now) {
                return Some((now.clone(), (served, Some(now))));
            }
        }
    });
    snapshots.take_until(ended).boxed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_of_another_version_is_refused_with_both_numbers() {
        let of = |version: Option<&str>| {
            let request = version
                .iter()
                .fold(http::Request::builder(), |request, version| request.header(VERSION_HEADER, *version));
            check_version(&request.body(Body::empty()).unwrap())
        };
        assert!(of(Some(&VERSION.to_string())).is_ok());
        for (version, named) in [(Some("999"), "999"), (None, "unknown")] {
            let refused = of(version).unwrap_err();
            let is_named = |text: &str| refused.message().contains(text);
            assert!(is_named(&format!("version {VERSION} ")) && is_named(named), "{refused}");
        }
    }
}
