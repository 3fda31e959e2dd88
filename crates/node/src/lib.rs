//! An engine in a process of its own, and how a server reaches it.
//!
//! `host` serves a [`poncho_api::Node`] on a socket, `remote` is the same node as seen from the other end, and `child`
//! keeps such a process running: it starts it again when it ends, loads its models again, and continues the replies
//! that were under way. The command line decides which process is which. Nothing here computes, and nothing here may
//! depend on the engine or the server.

mod child;
mod codec;
mod crash;
mod host;
mod link;
mod methods;
mod remote;
mod resume;

pub use child::{ChildNode, Launch, StartError};
pub use host::{Ended, parent_is_gone, serve_parent};
pub use remote::RemoteNode;
