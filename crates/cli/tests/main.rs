//! The tests of the `poncho` binary: one program, one module per topic. They start the real binary and look at what
//! it prints, how it exits and what it leaves in the folder.

#[cfg(test)]
mod agents;
#[cfg(test)]
mod commands;
#[cfg(test)]
mod documents;
#[cfg(test)]
mod fake_server;
#[cfg(test)]
mod nets;
#[cfg(test)]
mod packaging;
#[cfg(test)]
mod running;
#[cfg(test)]
mod served;
#[cfg(test)]
mod serving;
#[cfg(test)]
mod support;
#[cfg(test)]
mod terminal;
