//! The tests of `poncho-bench`: one program, one module per topic. They start the real binary, which starts the `poncho`
//! beside it.

#[cfg(test)]
mod comparing;
#[cfg(test)]
mod replaying;
// Runs of a binary, and the real server, as the tests of `poncho` start it.
#[cfg(test)]
#[path = "../../cli/tests/running.rs"]
#[expect(dead_code, reason = "shared with the tests of another crate")]
mod running;
#[cfg(test)]
#[path = "../../cli/tests/served.rs"]
#[expect(dead_code, reason = "shared with the tests of another crate")]
mod served;
#[cfg(test)]
mod support;
