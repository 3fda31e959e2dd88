//! Tests of the node: a stub engine in another process, which is this test binary started again.

#[cfg(test)]
mod aside;
#[cfg(test)]
mod cluster;
#[cfg(test)]
mod kills;
#[cfg(test)]
mod machines;
#[cfg(test)]
mod network;
#[cfg(test)]
mod protocol;
#[cfg(test)]
mod support;
