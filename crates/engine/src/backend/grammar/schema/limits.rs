//! The bounds of JSON schemas, in one place: read by the check beside it and by docs/safety.md.
//!
//! They were chosen by measuring: the costliest schema that they let through is converted in less than 200 ms on the
//! slow core that they were measured on. A unit of work is about 25 ns there.

/// Bytes of one schema.
pub(crate) const BYTES: usize = 256 << 10;
/// Bytes of all schemas of a request together: its tools and its format.
pub(crate) const BYTES_TOGETHER: usize = 2 << 20;
/// Schemas inside of schemas, references included.
pub(crate) const DEPTH: u64 = 64;
/// Schemas of a request, each one counted as often as the conversion meets it.
pub(crate) const NODES: u64 = 20_000;
/// Keys of any object in a schema.
pub(crate) const KEYS: u64 = 2_000;
/// Properties of an object.
pub(crate) const PROPERTIES: u64 = 1_000;
/// Properties of an object that are not required; the time grows with the cube of their number.
pub(crate) const OPTIONAL: u64 = 200;
/// Bytes of a property's name.
pub(crate) const NAME: u64 = 256;
/// Values of an enum.
pub(crate) const VALUES: u64 = 1_000;
/// Values of all enums of a request.
pub(crate) const VALUES_TOGETHER: u64 = 5_000;
/// Entries of `anyOf`, `oneOf`, `allOf`, `prefixItems` or a list of types.
pub(crate) const ALTERNATIVES: u64 = 200;
/// Ways through alternatives and references together.
pub(crate) const WAYS: u64 = 1_000;
/// Bytes of a pattern.
pub(crate) const PATTERN: u64 = 1_000;
/// `minLength` and `minItems`.
pub(crate) const REPETITIONS: u64 = 2_000;
/// Units of work that converting the schemas of a request takes.
pub(crate) const WORK: u64 = 4_000_000;

/// Units for a rule with its texts.
pub(super) const WORK_PER_RULE: u64 = 30;
/// Units for a name that is taken already.
pub(super) const WORK_PER_TRY: u64 = 12;
/// Units for a copy of a value or of a rule.
pub(super) const WORK_PER_COPY: u64 = 8;
/// Units for a byte of a literal.
pub(super) const WORK_PER_BYTE: u64 = 4;
/// Characters of a path that an error shows.
pub(super) const SHOWN_PATH: usize = 200;
