//! Which model of a server a command uses if the user names none.
//!
//! The one that is loaded; of several, the most recently used. Then the model of the last chat, then the default model,
//! then the first of the list. Called by `connection.rs`. Nothing is loaded here.

use poncho_client::Client;
use poncho_models::DEFAULT_MODEL;

use super::last_model;
use super::loaded::Loaded;

/// The choice among the listed models; `None` if there are none.
pub(crate) async fn choose(client: &Client, listed: &[String]) -> Option<String> {
    // Servers of others may not have the path, or answer it in another form.
    let loaded = client.get("/api/ps").await.ok().flatten();
    let loaded: Option<Loaded> = loaded.and_then(|answer| serde_json::from_value(answer).ok());
    let loaded: Vec<String> =
        loaded.map(|loaded| loaded.models.into_iter().map(|model| model.name).collect()).unwrap_or_default();
    pick(listed, &loaded, last_model::read().as_deref())
}

/// `loaded` has the most recently used model first.
fn pick(listed: &[String], loaded: &[String], last: Option<&str>) -> Option<String> {
    let preferred = loaded.iter().map(String::as_str).chain(last).chain([DEFAULT_MODEL]);
    preferred.filter_map(|text| name_at(text, listed)).next().or_else(|| listed.first().cloned())
}

/// The listed name of a model that is given by its name, with or without the tag `latest`, or by its file.
pub(crate) fn name_at(text: &str, listed: &[String]) -> Option<String> {
    let stem = text.strip_suffix(".gguf").map(|path| path.rsplit('/').next().unwrap_or(path));
    let bare = text.strip_suffix(":latest").map(str::to_owned);
    let meant = [Some(text.to_owned()), Some(format!("{text}:latest")), bare, stem.map(str::to_owned)];
    meant.into_iter().flatten().find(|name| listed.contains(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_model_is_found_under_its_name_its_tag_or_its_file() {
        let listed = names(&["attention", "smollm2:135m", "qwen:latest"]);
        for (text, found) in [
            ("attention", Some("attention")),
            ("attention:latest", Some("attention")),
            ("/models/attention.gguf", Some("attention")),
            ("attention.gguf", Some("attention")),
            ("smollm2:135m", Some("smollm2:135m")),
            ("qwen", Some("qwen:latest")),
            ("/models/attention", None),
            ("smollm2", None),
            ("", None),
        ] {
            assert_eq!(name_at(text, &listed).as_deref(), found, "{text}");
        }
    }

    /// Everyday use 12: the alphabetically first model was taken.
    #[test]
    fn the_loaded_model_is_preferred_then_the_last_one_then_the_default() {
        let listed = names(&["alpha", "beta:1", "smollm2:135m", "zeta"]);
        for (loaded, last, expected) in [
            (&["zeta:latest", "beta:1"][..], Some("beta:1"), "zeta"),
            (&[], Some("beta:1"), "beta:1"),
            (&[], Some("/models/zeta.gguf"), "zeta"),
            (&["gone"], Some("gone too"), "smollm2:135m"),
            (&[], None, "smollm2:135m"),
        ] {
            assert_eq!(pick(&listed, &names(loaded), last).as_deref(), Some(expected), "{loaded:?} {last:?}");
        }
        assert_eq!(pick(&names(&["b", "a"]), &[], None).as_deref(), Some("b"));
        assert_eq!(pick(&[], &names(&["a"]), Some("a")), None);
    }
}
