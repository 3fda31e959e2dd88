//! The tests of the `poncho` binary: one program, one module per topic. They start the real binary and look at what
//! it prints, how it exits and what it leaves in the folder.

#[cfg(test)]
mod bad_input;
#[cfg(test)]
mod bench;
#[cfg(test)]
mod changing;
#[cfg(test)]
mod chat_guide;
#[cfg(test)]
mod chatting;
#[cfg(test)]
mod configuring;
#[cfg(test)]
mod crafted;
#[cfg(test)]
mod diagnosing;
#[cfg(test)]
mod documents;
#[cfg(test)]
mod fake_server;
#[cfg(test)]
mod fixture;
#[cfg(test)]
mod guides;
#[cfg(test)]
mod logs;
#[cfg(test)]
mod manual;
#[cfg(test)]
mod models;
#[cfg(test)]
mod models_document;
#[cfg(test)]
mod newcomer;
#[cfg(test)]
mod packaged_files;
#[cfg(test)]
mod packaging;
#[cfg(test)]
mod piping;
#[cfg(test)]
mod progress;
#[cfg(test)]
mod reading;
#[cfg(test)]
mod running;
#[cfg(test)]
mod self_contained;
#[cfg(test)]
mod served;
#[cfg(test)]
mod serving;
#[cfg(test)]
mod settings_reached;
#[cfg(test)]
mod snapshots;
#[cfg(test)]
mod snippets;
#[cfg(test)]
mod stopping;
#[cfg(test)]
mod strange_files;
#[cfg(test)]
mod support;
#[cfg(test)]
mod terminal;
#[cfg(test)]
mod verifying;
#[cfg(test)]
mod watching;
