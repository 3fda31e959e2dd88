//! The shared tier over a folder, over memory, over SeaweedFS and Azurite, and over stores that fail; and pulls between nodes.
#![expect(clippy::cast_possible_truncation, reason = "the numbers of these tests are small")]

#[cfg(test)]
mod azurite;
#[cfg(test)]
mod collection;
#[cfg(test)]
mod encryption;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod fixture;
#[cfg(test)]
mod folder;
#[cfg(test)]
mod peers;
#[cfg(test)]
mod race;
#[cfg(test)]
mod seaweedfs;
#[cfg(test)]
mod tenants;
