//! Whether a server can listen on an address, and if not, which program does.
//!
//! Used by `serve` and `doctor`. The listener is closed at once. A program on the port is asked one question with a time
//! limit.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::Duration;

/// A program that takes longer to answer is not ours.
const PATIENCE: Duration = Duration::from_secs(2);

/// The state of an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PortState {
    Free,
    /// A Poncho answers there.
    Poncho,
    /// Some other program.
    Taken,
    /// It cannot be listened on, for this reason.
    Unusable(String),
}

pub(crate) fn look(host: &str, port: u16) -> PortState {
    let address = match (host, port).to_socket_addrs().map(|mut found| found.next()) {
        Ok(Some(address)) => address,
        Ok(None) => return PortState::Unusable("the host has no address".to_owned()),
        Err(error) => return PortState::Unusable(error.to_string()),
    };
    match TcpListener::bind(address) {
        Ok(_) => PortState::Free,
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => match is_poncho(address) {
            true => PortState::Poncho,
            false => PortState::Taken,
        },
        Err(error) => PortState::Unusable(error.to_string()),
    }
}

/// Why `serve` cannot listen there, and what to do about it.
pub(crate) fn why_not(address: SocketAddr, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse if is_poncho(address) => {
            "a Poncho already listens there; use it, stop it, or choose another port with --port".to_owned()
        }
        io::ErrorKind::AddrInUse => "another program listens there; stop it (`ss -ltnp` shows its process), or choose \
             another port with --port (0 picks a free one)"
            .to_owned(),
        io::ErrorKind::AddrNotAvailable => {
            format!(
                "{} is not an address of this machine; use --host 127.0.0.1, or 0.0.0.0 for all interfaces",
                address.ip()
            )
        }
        io::ErrorKind::PermissionDenied => {
            "this user may not listen on that port; choose one above 1023 with --port".to_owned()
        }
        _ => "check --host and --port".to_owned(),
    }
}

/// Whether the answers there have a request id like ours; this needs no key.
fn is_poncho(address: SocketAddr) -> bool {
    ask(address).is_ok_and(|head| head.to_ascii_lowercase().contains("\r\nx-request-id: req_"))
}

fn ask(address: SocketAddr) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    write!(stream, "GET /api/hygiene HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
    // The head of our own answers is far shorter; another program may send indefinitely.
    let mut head = Vec::new();
    let _ = stream.take(4096).read_to_end(&mut head);
    Ok(String::from_utf8_lossy(&head).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_taken_and_unusable_addresses_are_distinguished() {
        assert_eq!(look("127.0.0.1", 0), PortState::Free);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let stranger = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(b"HTTP/1.1 200 OK\r\nserver: other\r\n\r\n").unwrap();
        });
        assert_eq!(look("127.0.0.1", port), PortState::Taken);
        stranger.join().unwrap();
        assert!(matches!(look("192.0.2.1", 1), PortState::Unusable(_)), "an address that no machine has");
    }
}
