//! Addresses of loopback for servers that take their port as a setting, or that are started again on it.
//!
//! Used by tests in place of port 0 where the port has to be known before the server listens. It must never choose a port
//! that the system assigns by itself: another test could get it before the server listens, or while it is stopped.

#![expect(clippy::unwrap_used, reason = "called by tests only, and a test without a port has to fail")]

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

/// Below the ports that Linux and macOS assign, with room for all that run at once.
const FIRST: u16 = 12_000;
const COUNT: u16 = 20_000;
/// Ports between the first ones of processes with consecutive ids. Tests run in processes of their own.
const APART: u32 = 97;

/// An address that nobody listens at, and that this process has not been given before.
#[must_use]
pub fn unused_address() -> SocketAddr {
    static TAKEN: AtomicU16 = AtomicU16::new(0);
    let first = u16::try_from(std::process::id().wrapping_mul(APART) % u32::from(COUNT)).unwrap();
    let mut places = (0..COUNT).map(|_| (first + TAKEN.fetch_add(1, Ordering::Relaxed) % COUNT) % COUNT);
    let address = |place: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, FIRST + place));
    places.find_map(|place| TcpListener::bind(address(place)).is_ok().then(|| address(place))).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_differ_are_free_and_are_never_assigned_by_the_system() {
        let addresses: Vec<SocketAddr> = (0..8).map(|_| unused_address()).collect();
        let held: Vec<TcpListener> = addresses.iter().map(|address| TcpListener::bind(address).unwrap()).collect();
        assert!(addresses.iter().all(|address| (FIRST..FIRST + COUNT).contains(&address.port())));
        assert!(!addresses.contains(&unused_address()), "{} are taken", held.len());
    }
}
