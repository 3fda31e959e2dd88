//! Tests of the node: a stub engine in a child process, which is this test binary started again.

#[cfg(test)]
mod kills;
#[cfg(test)]
mod protocol;
#[cfg(test)]
mod support;
