//! The tests of the registry: one program, one module per topic. Everything happens in temporary folders and over
//! loopback.

#[cfg(test)]
mod crashes;
#[cfg(test)]
mod creating;
#[cfg(test)]
mod hub;
#[cfg(test)]
mod loopback;
#[cfg(test)]
mod pulling;
#[cfg(test)]
mod registry;
#[cfg(test)]
mod strange_files;
#[cfg(test)]
mod support;
