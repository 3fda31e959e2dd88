//! The tools of tool servers, listed once and kept for a while.
//!
//! Held by the app's state, asked by `/v1/responses`. A list that cannot be had is not kept, so the next request tries
//! again. It must never hold a header in a readable form, nor give one client's list to a client with other headers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::time::Instant;

use super::tool_server::{RemoteTool, ToolServer, ToolServerError};

/// Lists that are kept; the oldest goes first.
const MOST_LISTS: usize = 64;
/// A server that gained a tool shows it after this time.
const FRESH: Duration = Duration::from_secs(300);
/// A server that is down delays a response by this time at most.
const LIST_TIME: Duration = Duration::from_secs(10);
/// Tools of one server. More would fill the prompt of any model.
const MOST_TOOLS: usize = 128;
/// Bytes of their names, descriptions and schemas.
const MOST_BYTES: usize = 256 << 10;

/// The address and a hash of the client's headers.
type ListKey = (String, [u8; 32]);
/// When a list was read, and its tools.
type KeptList = (Instant, Arc<[RemoteTool]>);

/// See the module.
#[derive(Default)]
pub(crate) struct ToolLists {
    kept: Mutex<HashMap<ListKey, KeptList>>,
}

impl ToolLists {
    /// The tools of a server, asked for if they are not kept.
    pub(crate) async fn get(
        &self,
        server: &dyn ToolServer,
        headers: &[(String, String)],
    ) -> Result<Arc<[RemoteTool]>, ToolServerError> {
        let key = (server.url().to_owned(), hash(headers));
        if let Some(tools) = self.fresh(&key) {
            return Ok(tools);
        }
        let listing = async { server.connect(headers).await?.list().await };
        let late = |_| ToolServerError::Late { seconds: LIST_TIME.as_secs() };
        let tools = tokio::time::timeout(LIST_TIME, listing).await.map_err(late)??;
        let bytes = serde_json::to_vec(&tools).map_or(usize::MAX, |json| json.len());
        if tools.len() > MOST_TOOLS || bytes > MOST_BYTES {
            let reason = format!(
                "it has {} tools of {bytes} bytes, and at most {MOST_TOOLS} tools of {MOST_BYTES} bytes can be used",
                tools.len()
            );
            return Err(ToolServerError::Unusable { reason });
        }
        let tools: Arc<[RemoteTool]> = tools.into();
        self.keep(key, Arc::clone(&tools));
        Ok(tools)
    }

    fn fresh(&self, key: &ListKey) -> Option<Arc<[RemoteTool]>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.get(key).filter(|(since, _)| since.elapsed() < FRESH).map(|(_, tools)| Arc::clone(tools))
    }

    fn keep(&self, key: ListKey, tools: Arc<[RemoteTool]>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.insert(key, (Instant::now(), tools));
        if kept.len() > MOST_LISTS
            && let Some(oldest) = kept.iter().min_by_key(|(_, (since, _))| *since).map(|(key, _)| key.clone())
        {
            kept.remove(&oldest);
        }
    }
}

fn hash(headers: &[(String, String)]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for text in headers.iter().flat_map(|(name, value)| [name, value]) {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    }
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::FutureExt as _;
    use futures_util::future::BoxFuture;
    use serde_json::{Map, Value};

    use super::*;
    use crate::responses::tool_server::{RemoteResult, ToolSession};

    /// Counts how often it is asked; its number of tools is a field.
    #[derive(Debug, Default)]
    struct Counting {
        asked: AtomicUsize,
        tools: usize,
        hangs: bool,
    }

    struct Session(usize);

    impl ToolServer for Counting {
        fn url(&self) -> &str {
            "http://tools.test/mcp"
        }

        fn connect<'s>(
            &'s self,
            _headers: &'s [(String, String)],
        ) -> BoxFuture<'s, Result<Box<dyn ToolSession>, ToolServerError>> {
            self.asked.fetch_add(1, Ordering::SeqCst);
            if self.hangs {
                return futures_util::future::pending().boxed();
            }
            async { Ok(Box::new(Session(self.tools)) as Box<dyn ToolSession>) }.boxed()
        }
    }

    impl ToolSession for Session {
        fn list(&self) -> BoxFuture<'_, Result<Vec<RemoteTool>, ToolServerError>> {
            let tool = |number: usize| RemoteTool {
                name: format!("t{number}"),
                description: None,
                input_schema: Map::new(),
                annotations: None,
            };
            async move { Ok((0..self.0).map(tool).collect()) }.boxed()
        }

        fn call<'s>(
            &'s self,
            _name: &'s str,
            _arguments: Map<String, Value>,
        ) -> BoxFuture<'s, Result<RemoteResult, ToolServerError>> {
            futures_util::future::pending().boxed()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_is_asked_for_once_for_each_set_of_headers_until_it_is_old() {
        let (lists, server) = (ToolLists::default(), Counting { tools: 2, ..Counting::default() });
        let other = [("x-user".to_owned(), "b".to_owned())];
        for _ in 0..3 {
            assert_eq!(lists.get(&server, &[]).await.unwrap().len(), 2);
            assert_eq!(lists.get(&server, &other).await.unwrap().len(), 2);
        }
        assert_eq!(server.asked.load(Ordering::SeqCst), 2);
        tokio::time::advance(FRESH).await;
        lists.get(&server, &[]).await.unwrap();
        assert_eq!(server.asked.load(Ordering::SeqCst), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn lists_are_bounded_in_number_size_and_time() {
        let lists = ToolLists::default();
        let server = Counting { tools: 1, ..Counting::default() };
        for number in 0..=MOST_LISTS {
            lists.get(&server, &[("x-user".to_owned(), number.to_string())]).await.unwrap();
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert_eq!(lists.kept.lock().unwrap().len(), MOST_LISTS);
        let large = Counting { tools: MOST_TOOLS + 1, ..Counting::default() };
        // The address is the same, so headers tell the servers apart.
        let headers = [("x-user".to_owned(), "large".to_owned())];
        let error = lists.get(&large, &headers).await.unwrap_err().to_string();
        assert!(error.contains("129 tools"), "{error}");
        let hanging = Counting { hangs: true, ..Counting::default() };
        let headers = [("x-user".to_owned(), "hanging".to_owned())];
        let begun = Instant::now();
        assert_eq!(lists.get(&hanging, &headers).await, Err(ToolServerError::Late { seconds: LIST_TIME.as_secs() }));
        assert_eq!(begun.elapsed(), LIST_TIME);
    }
}
