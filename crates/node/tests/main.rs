//! Tests of the node: a stub engine in a child process, which is this test binary started again.

mod kills;
mod protocol;
mod support;
