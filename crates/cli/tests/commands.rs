//! The commands: what they print and how they exit.

pub(crate) mod bench;
pub(crate) mod changing;
pub(crate) mod chatting;
pub(crate) mod configuring;
pub(crate) mod diagnosing;
pub(crate) mod explaining;
pub(crate) mod logs;
pub(crate) mod models;
pub(crate) mod piping;
pub(crate) mod progress;
pub(crate) mod reading;
pub(crate) mod settings_reached;
pub(crate) mod showing;
pub(crate) mod verifying;
pub(crate) mod watching;
