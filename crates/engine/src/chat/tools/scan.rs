//! Walking through JSON that is still being written: where a value ends, or that it has not ended yet.
//!
//! Used by the generic parser, which has to name a call before its arguments are complete. It looks at brackets and
//! quotes only and never says that an unfinished value is finished.

/// Where the value at the start of a text ends, in bytes; `None` while it is not finished.
pub(super) fn value_end(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    let mut in_text = false;
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => {
                in_text = !in_text;
                if !in_text && depth == 0 {
                    return Some(at + 1);
                }
            }
            _ if in_text => {}
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth == 0 => return Some(at),
            b'}' | b']' => {
                depth -= 1;
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            b',' | b' ' | b'\n' | b'\r' | b'\t' if depth == 0 && at > 0 => return Some(at),
            _ => {}
        }
    }
    None
}

/// The fields of an object as far as they are written: name and raw value, and whether the value is finished.
pub(super) fn fields(object: &str) -> Vec<(String, &str, bool)> {
    let mut found = Vec::new();
    let Some(mut rest) = object.trim_start().strip_prefix('{') else { return found };
    loop {
        rest = rest.trim_start().trim_start_matches(',').trim_start();
        let Some((name, after)) =
            rest.starts_with('"').then(|| value_end(rest)).flatten().and_then(|end| rest.split_at_checked(end))
        else {
            return found;
        };
        let (Ok(name), Some(value)) = (serde_json::from_str::<String>(name), after.trim_start().strip_prefix(':'))
        else {
            return found;
        };
        let value = value.trim_start();
        match value_end(value).and_then(|end| value.split_at_checked(end)) {
            Some((value, after)) => {
                found.push((name, value, true));
                rest = after;
            }
            None => {
                found.push((name, value, false));
                return found;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_end_where_json_says() {
        for (text, end) in [
            (r#"{"a": "}\"", "b": [1]} x"#, Some(22)),
            (r#""te\"xt", 1"#, Some(8)),
            ("12, 3", Some(2)),
            ("true}", Some(4)),
            ("12", None),
            (r#"{"a": [1"#, None),
            (r#""half\"#, None),
            ("", None),
        ] {
            assert_eq!(value_end(text), end, "{text}");
        }
    }

    #[test]
    fn fields_are_told_as_far_as_they_go() {
        let all = fields(r#" {"name": "f", "arguments": {"a": [1, {"b": 2}]}}"#);
        assert_eq!(
            all,
            [("name".to_owned(), "\"f\"", true), ("arguments".to_owned(), r#"{"a": [1, {"b": 2}]}"#, true)]
        );
        let half = fields(r#"{"name":"f","arguments":{"a": [1,"#);
        assert_eq!(half.last(), Some(&("arguments".to_owned(), r#"{"a": [1,"#, false)));
        for nothing in ["", "no", "{", "{\"na", "{\"name\"", "{5: 6}"] {
            assert!(fields(nothing).is_empty(), "{nothing}");
        }
    }
}
