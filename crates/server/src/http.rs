//! HTTP itself: connections, routes, keys, origins, bodies, errors, streams of replies.

pub(crate) mod app;
pub(crate) mod auth;
pub(crate) mod body;
pub(crate) mod console;
pub(crate) mod heartbeat;
pub(crate) mod ndjson;
pub(crate) mod origin;
pub(crate) mod reply;
pub(crate) mod sse;
pub(crate) mod token_list;
pub(crate) mod unknown_fields;
pub(crate) mod unread_body;
pub(crate) mod uploads;
pub(crate) mod warnings;
pub(crate) mod write_timeout;
