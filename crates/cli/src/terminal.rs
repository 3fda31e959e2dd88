//! Text for people: tables, sizes, times, log lines, and text of strangers made harmless.
//!
//! Used by every command. It must know nothing of what the text is about.

pub(crate) mod bytes;
pub(crate) mod excerpt;
pub(crate) mod logging;
pub(crate) mod printable;
pub(crate) mod table;
pub(crate) mod time;
