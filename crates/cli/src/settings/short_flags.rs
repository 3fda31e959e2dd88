//! The short flags of llama-server that have several letters, such as `-ngl`, as the flags that they mean.
//!
//! Called before the command line is parsed: the parser knows short flags of one letter only, and would read `-np` as
//! two of them. Pure. Words after `--` and words of other commands stay as they are.

use std::ffi::OsString;

/// Short flags with their long forms.
const FLAGS: [(&str, &str); 14] = [
    ("-ngl", "--gpu-layers"),
    ("-np", "--parallel"),
    ("-fa", "--flash-attn"),
    ("-ctk", "--cache-type-k"),
    ("-ctv", "--cache-type-v"),
    ("-ub", "--ubatch-size"),
    ("-tb", "--threads-batch"),
    ("-dev", "--device"),
    ("-sm", "--split-mode"),
    ("-ts", "--tensor-split"),
    ("-mg", "--main-gpu"),
    ("-cmoe", "--cpu-moe"),
    ("-ncmoe", "--n-cpu-moe"),
    ("-rea", "--reasoning"),
];

/// The one that may come without a value, which is then `on`.
const FLASH: &str = "--flash-attn";

/// The words of a command line with long flags, if it is one of the commands that have them.
pub(super) fn spelled_out(words: Vec<OsString>, commands: &[&str]) -> Vec<OsString> {
    let is_command = |word: &OsString| word.to_str().is_some_and(|word| commands.contains(&word));
    let Some(start) = words.iter().position(is_command) else { return words };
    let mut spelled = Vec::with_capacity(words.len());
    let mut is_over = false;
    for (at, word) in words.iter().enumerate() {
        is_over |= word == "--";
        let text = word.to_str().filter(|_| at > start && !is_over).unwrap_or_default();
        let (name, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
        let Some((_, long)) = FLAGS.iter().find(|(short, _)| *short == name) else {
            spelled.push(word.clone());
            continue;
        };
        let is_value = |next: &OsString| ["on", "off", "auto"].iter().any(|value| next == value);
        let is_bare = *long == FLASH && value.is_none() && !words.get(at.saturating_add(1)).is_some_and(is_value);
        spelled.push(match value {
            Some(value) => format!("{long}={value}").into(),
            None if is_bare => format!("{long}=on").into(),
            None => OsString::from(*long),
        });
    }
    spelled
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spelled(line: &str) -> String {
        let words = line.split_whitespace().map(OsString::from).collect();
        let spelled = spelled_out(words, &["serve"]);
        spelled.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn short_flags_of_several_letters_are_spelled_out() {
        for (line, expected) in [
            ("poncho serve m -ngl 99 -np 2", "poncho serve m --gpu-layers 99 --parallel 2"),
            ("poncho serve -ngl=7 -m x -c 4096 -t 2", "poncho serve --gpu-layers=7 -m x -c 4096 -t 2"),
            ("poncho serve -fa off m", "poncho serve --flash-attn off m"),
            ("poncho serve -fa m", "poncho serve --flash-attn=on m"),
            ("poncho serve m -fa", "poncho serve m --flash-attn=on"),
            ("poncho serve m -ngl -1", "poncho serve m --gpu-layers -1"),
            ("poncho --log-level info serve -cmoe", "poncho --log-level info serve --cpu-moe"),
            ("poncho serve -- -ngl", "poncho serve -- -ngl"),
            ("poncho serve m -rea off", "poncho serve m --reasoning off"),
            ("poncho run m -np", "poncho run m -np"),
        ] {
            assert_eq!(spelled(line), expected);
        }
    }
}
