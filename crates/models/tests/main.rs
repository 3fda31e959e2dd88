//! The tests of the registry: one program, one module per topic. Everything happens in temporary folders and over
//! loopback.

#[cfg(test)]
mod crashes;
#[cfg(test)]
mod creating;
#[cfg(test)]
mod registry;
#[cfg(test)]
mod support;
