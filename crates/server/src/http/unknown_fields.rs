//! The fields of a body that no struct knows, collected while the body is read.
//!
//! `body.rs` reads every object of a request through [`read`]. Serde passes each struct's own list of fields along, so an
//! unknown name is seen without a second pass and without a list to keep. Deserialising is synchronous, so the list of
//! the body that is being read lives in a thread-local for the time of one call. It must never hold more than a few
//! short names: a client chooses them.

use std::cell::RefCell;
use std::fmt;

use serde::de::value::{StrDeserializer, UnitDeserializer};
use serde::de::{self, Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::forward_to_deserialize_any;

/// The most names of a body.
const MOST: usize = 32;
/// The most bytes of a name or a value.
const MOST_BYTES: usize = 64;

thread_local! {
    static NOTES: RefCell<Option<Notes>> = const { RefCell::new(None) };
}

/// The list of the body that is being read.
#[derive(Default)]
struct Notes {
    found: Vec<UnknownField>,
    /// The field that is being read in each open object.
    path: Vec<&'static str>,
}

/// A field that was skipped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UnknownField {
    /// The names of the objects around it and its own, joined by dots. Positions in lists are left out, so a field that
    /// many messages have is one entry.
    pub(crate) path: String,
    /// Its own name.
    pub(crate) name: String,
    /// Its value, if that is a short scalar.
    pub(crate) word: Option<String>,
    /// The fields of the object that it is in.
    pub(crate) known: &'static [&'static str],
}

/// Reads something and lists the unknown fields in it.
pub(crate) fn collected<T>(read: impl FnOnce() -> T) -> (T, Vec<UnknownField>) {
    let outer = NOTES.replace(Some(Notes::default()));
    let value = read();
    let notes = NOTES.replace(outer);
    (value, notes.map(|notes| notes.found).unwrap_or_default())
}

/// Reads an object.
pub(crate) fn read<'de, T: Deserialize<'de>, A: MapAccess<'de>>(map: A) -> Result<T, A::Error> {
    T::deserialize(Watched(map))
}

/// An object that notes the names which its struct does not know.
struct Watched<A>(A);

impl<'de, A: MapAccess<'de>> Deserializer<'de> for Watched<A> {
    type Error = A::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, A::Error> {
        visitor.visit_map(self.0)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        noting(|notes| notes.path.push(""));
        let read = visitor.visit_map(Noting { map: self.0, fields, unknown: None });
        noting(|notes| {
            notes.path.pop();
        });
        read
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// Does something with the list, if a body is being read.
fn noting(change: impl FnOnce(&mut Notes)) {
    NOTES.with_borrow_mut(|notes| notes.as_mut().map(change));
}

struct Noting<A> {
    map: A,
    fields: &'static [&'static str],
    /// The name that was read last, if it is unknown.
    unknown: Option<String>,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Noting<A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        let Some(key) = self.map.next_key::<Name<'de>>()? else { return Ok(None) };
        let key = key.as_str();
        self.unknown = match self.fields.iter().find(|field| **field == key) {
            Some(field) => {
                noting(|notes| {
                    if let Some(last) = notes.path.last_mut() {
                        *last = field;
                    }
                });
                None
            }
            None => Some(short(key)),
        };
        seed.deserialize(StrDeserializer::new(key)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        let Some(name) = self.unknown.take() else { return self.map.next_value_seed(seed) };
        // Null and empty values ask for nothing.
        match self.map.next_value()? {
            Shape::Empty => {}
            Shape::Word(word) => note(name, Some(word), self.fields),
            Shape::Other => note(name, None, self.fields),
        }
        seed.deserialize(UnitDeserializer::new())
    }
}

fn note(name: String, word: Option<String>, known: &'static [&'static str]) {
    noting(|notes| {
        let around = notes.path.len().saturating_sub(1);
        let names = notes.path.iter().take(around).copied().chain([name.as_str()]);
        let path = names.collect::<Vec<&str>>().join(".");
        if notes.found.len() < MOST && !notes.found.iter().any(|found| found.path == path) {
            notes.found.push(UnknownField { path, name, word, known });
        }
    });
}

/// The parameters of a query, as if none were known. SDKs of Anthropic and Azure add their own to every request.
pub(crate) fn of_query(query: Option<&str>) -> Vec<UnknownField> {
    const OF_SDKS: [&str; 2] = ["beta", "api-version"];
    let pairs = form_urlencoded::parse(query.unwrap_or_default().as_bytes());
    let unknown = pairs.filter(|(name, _)| !name.is_empty() && !OF_SDKS.contains(&&**name)).take(MOST);
    let field = |name: String, word: String| UnknownField {
        path: format!("?{name}"),
        name,
        word: Some(word).filter(|word| !word.is_empty()),
        known: &[],
    };
    unknown.map(|(name, word)| field(short(&name), short(&word))).collect()
}

/// The beginning of a text that a client wrote, safe to print.
pub(crate) fn short(text: &str) -> String {
    let cut: String =
        text.chars().take(MOST_BYTES).map(|letter| if letter.is_control() { '?' } else { letter }).collect();
    if cut.len() < text.len() { format!("{cut}…") } else { cut }
}

/// The name of a field; borrowed from the body unless it has escapes.
enum Name<'de> {
    Borrowed(&'de str),
    Owned(String),
}

impl Name<'_> {
    fn as_str(&self) -> &str {
        match self {
            Self::Borrowed(name) => name,
            Self::Owned(name) => name,
        }
    }
}

impl<'de> Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_identifier(NameVisitor)
    }
}

struct NameVisitor;

impl<'de> Visitor<'de> for NameVisitor {
    type Value = Name<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the name of a field")
    }

    fn visit_borrowed_str<E: de::Error>(self, name: &'de str) -> Result<Name<'de>, E> {
        Ok(Name::Borrowed(name))
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<Name<'de>, E> {
        Ok(Name::Owned(name.to_owned()))
    }
}

/// As much of a value as a warning needs.
enum Shape {
    /// Null, or a text, list or object without contents.
    Empty,
    /// A short scalar.
    Word(String),
    Other,
}

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ShapeVisitor)
    }
}

struct ShapeVisitor;

impl<'de> Visitor<'de> for ShapeVisitor {
    type Value = Shape;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("any value")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Shape, E> {
        Ok(Shape::Empty)
    }

    fn visit_none<E: de::Error>(self) -> Result<Shape, E> {
        Ok(Shape::Empty)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Shape, E> {
        Ok(Shape::Word(value.to_string()))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Shape, E> {
        Ok(Shape::Word(value.to_string()))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Shape, E> {
        Ok(Shape::Word(value.to_string()))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Shape, E> {
        Ok(Shape::Word(value.to_string()))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Shape, E> {
        Ok(match value.len() {
            0 => Shape::Empty,
            1..=MOST_BYTES => Shape::Word(short(value)),
            _ => Shape::Other,
        })
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<Shape, S::Error> {
        let mut shape = Shape::Empty;
        while list.next_element::<IgnoredAny>()?.is_some() {
            shape = Shape::Other;
        }
        Ok(shape)
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Shape, M::Error> {
        let mut shape = Shape::Empty;
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
            shape = Shape::Other;
        }
        Ok(shape)
    }
}

#[cfg(test)]
mod tests {
    use crate::http::body::{Object, parse_checked};

    #[derive(Debug, serde::Deserialize)]
    struct Outer {
        #[expect(dead_code, reason = "only its name matters")]
        inner: Option<Vec<Object<Inner>>>,
    }

    #[derive(Debug, serde::Deserialize)]
    struct Inner {
        #[expect(dead_code, reason = "only its name matters")]
        #[serde(alias = "count")]
        number: Option<u32>,
    }

    fn paths(text: &str) -> Vec<String> {
        let (_, found) = parse_checked::<Outer>(text.as_bytes()).unwrap();
        found.into_iter().map(|field| field.path).collect()
    }

    #[test]
    fn unknown_fields_are_listed_once_with_the_objects_around_them() {
        let text = r#"{"a": 1, "inner": [{"number": 1, "b": {"inner": 2}}, {"count": 2, "b": 3}], "c": "x"}"#;
        assert_eq!(paths(text), ["a", "inner.b", "c"]);
        assert_eq!(paths(r#"{"inner": null, "a": null, "b": [], "c": {}, "d": ""}"#), Vec::<String>::new());
        let (_, found) = parse_checked::<Outer>(br#"{"a": false, "b": "auto", "c": [1], "\u0064": 2}"#).unwrap();
        let words: Vec<Option<&str>> = found.iter().map(|field| field.word.as_deref()).collect();
        assert_eq!(words, [Some("false"), Some("auto"), None, Some("2")]);
        assert_eq!((found[3].name.as_str(), found[0].known), ("d", &["inner"][..]));
    }

    #[test]
    fn a_client_cannot_make_the_list_long() {
        let many: Vec<String> = (0..1000).map(|number| format!("\"{}{number}\": 1", "x".repeat(1000))).collect();
        let found = paths(&format!("{{{}}}", many.join(", ")));
        assert_eq!(found.len(), 1, "names that begin alike are one entry");
        let many: Vec<String> = (0..1000).map(|number| format!("\"{number}\": 1")).collect();
        let found = paths(&format!("{{{}}}", many.join(", ")));
        assert!(found.len() == super::MOST && found.iter().all(|path| path.len() < 100));
    }
}
