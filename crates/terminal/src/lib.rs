//! Text for people: tables, sizes, times, progress, JSON, and the end of a command.
//!
//! Used by the binaries `poncho` and `poncho-bench`, which would otherwise hold it twice. It must know nothing of
//! models, caches or servers.

mod bytes;
mod excerpt;
mod outcome;
mod output;
mod printable;
mod progress;
mod table;
mod time;
mod width;
mod wrap;

pub use bytes::{parse_bytes, show_bytes};
pub use excerpt::{clipped, excerpt};
pub use outcome::{Outcome, exit_code, print_error};
pub use output::{Output, print_json};
pub use printable::{is_obeyed, printable, printable_line};
pub use progress::{Progress, Unit};
pub use table::{Align, Table, TableStyle};
pub use time::{ago, iso, now, parse_iso, show_duration};
pub use width::{shortened, terminal_width};
pub use wrap::Wrapper;
