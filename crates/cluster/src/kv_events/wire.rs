//! The bytes of an event batch: `[time, [events], data parallel rank]`, each event an array that begins with its name.
//!
//! Follows the schema that vLLM publishes in `vllm/distributed/kv_events.py`, in its array form, which Dynamo and llm-d
//! read. Fields are positional: none may be moved, and new ones go to the end.

use serde::ser::{Serialize, SerializeSeq, SerializeTuple, Serializer};

/// What happened to blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Blocks exist now.
    BlockStored {
        /// Their names, the first one first.
        block_hashes: Vec<u64>,
        /// The block before them.
        parent: Option<u64>,
        /// Their tokens, all of them.
        token_ids: Vec<u32>,
        /// Tokens of one block.
        block_size: usize,
        /// Where they are.
        medium: &'static str,
    },
    /// Blocks exist no longer.
    BlockRemoved {
        /// Their names.
        block_hashes: Vec<u64>,
        /// Where they were.
        medium: &'static str,
    },
    /// No block exists.
    AllBlocksCleared,
}

/// Events with their time.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// Seconds since 1970.
    pub time: f64,
    /// The events in their order.
    pub events: Vec<Event>,
}

impl Serialize for Event {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let none: Option<u8> = None;
        match self {
            Self::BlockStored { block_hashes, parent, token_ids, block_size, medium } => {
                let mut fields = serializer.serialize_tuple(8)?;
                fields.serialize_element("BlockStored")?;
                fields.serialize_element(block_hashes)?;
                fields.serialize_element(parent)?;
                fields.serialize_element(token_ids)?;
                fields.serialize_element(block_size)?;
                // The number of an adapter (deprecated), where the blocks are, the name of an adapter.
                fields.serialize_element(&none)?;
                fields.serialize_element(medium)?;
                fields.serialize_element(&none)?;
                fields.end()
            }
            Self::BlockRemoved { block_hashes, medium } => {
                let mut fields = serializer.serialize_tuple(3)?;
                fields.serialize_element("BlockRemoved")?;
                fields.serialize_element(block_hashes)?;
                fields.serialize_element(medium)?;
                fields.end()
            }
            Self::AllBlocksCleared => {
                let mut fields = serializer.serialize_seq(Some(1))?;
                fields.serialize_element("AllBlocksCleared")?;
                fields.end()
            }
        }
    }
}

impl Serialize for Batch {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_tuple(3)?;
        fields.serialize_element(&self.time)?;
        fields.serialize_element(&self.events)?;
        // There is one data parallel rank.
        fields.serialize_element(&0_u8)?;
        fields.end()
    }
}

impl Batch {
    /// Its bytes. An empty vector if it cannot be encoded, which no batch is.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let bytes = rmp_serde::to_vec(self);
        debug_assert!(bytes.is_ok(), "plain arrays can be encoded");
        bytes.unwrap_or_default()
    }
}
