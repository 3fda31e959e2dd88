//! The tests of the `poncho` binary: one program, one module per topic. They start the real binary and look at what
//! it prints, how it exits and what it leaves in the folder.

#[cfg(test)]
mod bad_input;
#[cfg(test)]
mod changing;
#[cfg(test)]
mod comparing;
#[cfg(test)]
mod documents;
#[cfg(test)]
mod reading;
#[cfg(test)]
mod replaying;
#[cfg(test)]
mod support;
#[cfg(test)]
mod verifying;
