//! MessagePack bodies for gRPC: the types of the API are the schema.
//!
//! Used by both ends. Fields are written by name, because optional ones may be left out. A message that does not parse is
//! an error of the call, never a panic.

use std::marker::PhantomData;

use bytes::{Buf, BufMut};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

/// The largest message: a prompt of a client with its images left out, or the rows of a large page.
pub(crate) const LARGEST: usize = 256 << 20;

/// Sends `E`, receives `D`.
pub(crate) struct Packed<E, D>(PhantomData<fn() -> (E, D)>);

impl<E, D> Default for Packed<E, D> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

/// One direction.
pub(crate) struct Half<T>(PhantomData<fn() -> T>);

impl<E, D> Codec for Packed<E, D>
where
    E: Serialize + Send + 'static,
    D: DeserializeOwned + Send + 'static,
{
    type Encode = E;
    type Decode = D;
    type Encoder = Half<E>;
    type Decoder = Half<D>;

    fn encoder(&mut self) -> Half<E> {
        Half(PhantomData)
    }

    fn decoder(&mut self) -> Half<D> {
        Half(PhantomData)
    }
}

impl<T: Serialize + Send + 'static> Encoder for Half<T> {
    type Item = T;
    type Error = Status;

    fn encode(&mut self, item: T, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        rmp_serde::encode::write_named(&mut out.writer(), &item)
            .map_err(|error| Status::internal(format!("a message cannot be written: {error}")))
    }
}

impl<T: DeserializeOwned + Send + 'static> Decoder for Half<T> {
    type Item = T;
    type Error = Status;

    fn decode(&mut self, bytes: &mut DecodeBuf<'_>) -> Result<Option<T>, Status> {
        rmp_serde::from_read(bytes.reader())
            .map(Some)
            .map_err(|error| Status::invalid_argument(format!("a message cannot be read: {error}")))
    }
}
