//! An engine in a process of its own, here or on another machine, and how a server reaches it.
//!
//! `host` serves a [`poncho_api::Node`] on a socket or a port, and `remote` is the same node as seen from the other end.
//! `child` keeps such a process running: it starts it again when it ends and loads its models again. `fleet` does the
//! same for nodes on other machines, as far as a connection can. Both give out the models of `lasting`, with replies
//! that outlive the process that computes them. `membership` announces a node to a cluster. The command line decides which process is which. Nothing here computes, and
//! nothing here may depend on the engine or the server.

mod child;
mod codec;
mod fleet;
mod host;
mod journey;
mod lasting;
mod link;
mod membership;
mod methods;
mod remote;
mod tls;

pub use child::{ChildNode, Launch, StartError};
pub use fleet::{Fleet, FleetSettings, Routed};
pub use host::network::{HostError, serve_network};
pub use host::{Ended, parent_is_gone, serve_parent};
pub use link::{ConnectError, NodeAddress};
pub use membership::rows::{KvRows, RowSink, follow};
pub use membership::{MemberSettings, Membership, PeerSpeed};
pub use tls::issue::{IssueError, Issued, issue};
pub use tls::{CredentialError, CredentialFiles, Credentials};
