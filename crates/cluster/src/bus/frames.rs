//! Questions and answers over TCP: one frame each, a length of four bytes and the sealed message.
//!
//! Used by both sides. A frame has a largest size and a connection a deadline, so that nobody can hold memory or a task.

use std::io::{Error, ErrorKind};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::BusError;

/// A page of rows with long chains.
const MOST_BYTES: u32 = 64 << 20;

/// For a connection and one question with its answer.
const DEADLINE: Duration = Duration::from_secs(5);

pub(super) async fn read(stream: &mut TcpStream, most: u32) -> std::io::Result<Vec<u8>> {
    let length = stream.read_u32().await?;
    if length > most {
        return Err(Error::new(ErrorKind::InvalidData, "the frame is too long"));
    }
    let mut frame = Vec::new();
    // Grows with what arrives: a length alone costs the sender as much as us.
    let received = stream.take(u64::from(length)).read_to_end(&mut frame).await?;
    if u64::try_from(received).ok() != Some(u64::from(length)) {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(frame)
}

pub(super) async fn write(stream: &mut TcpStream, frame: &[u8]) -> std::io::Result<()> {
    let length = u32::try_from(frame.len()).map_err(|_| Error::from(ErrorKind::InvalidData))?;
    stream.write_u32(length).await?;
    stream.write_all(frame).await?;
    stream.flush().await
}

/// Sends a sealed question and returns the sealed answer.
pub(super) async fn ask(address: &str, question: &[u8]) -> Result<Vec<u8>, BusError> {
    let exchange = async {
        let mut stream = TcpStream::connect(address).await?;
        write(&mut stream, question).await?;
        read(&mut stream, MOST_BYTES).await
    };
    let failed = |reason: String| BusError::Ask { address: address.to_owned(), reason };
    match tokio::time::timeout(DEADLINE, exchange).await {
        Ok(answer) => answer.map_err(|error| failed(error.to_string())),
        Err(_) => Err(failed("no answer in 5 s".to_owned())),
    }
}
