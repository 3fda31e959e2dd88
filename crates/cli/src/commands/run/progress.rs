//! What is shown while a reply has not begun: that something happens, how long, and how much of the prompt is read.
//!
//! Drawn on standard error, and only if that is a terminal. The numbers come from the server's `/metrics` page; they
//! are shown only while the model serves nobody else, because otherwise they would be the sum of several prompts.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tokio::task::JoinHandle;

use crate::client::http::Client;
use crate::client::prometheus::Page;

/// How often the server is asked.
const POLL: Duration = Duration::from_millis(250);
/// How often the spinner turns.
const STEP: Duration = Duration::from_millis(100);

/// A spinner that goes when it is dropped.
pub(crate) struct Waiting {
    bar: ProgressBar,
    poll: Option<JoinHandle<()>>,
}

impl Waiting {
    /// Begins to wait for a reply of this model.
    pub(crate) fn begin(client: &Client, model: &str) -> Self {
        let bar = ProgressBar::new_spinner().with_message("reading the prompt");
        let style = ProgressStyle::with_template("{spinner} {msg} {elapsed}");
        let bar = style.map_or(bar.clone(), |style| bar.with_style(style));
        if bar.is_hidden() {
            return Self { bar, poll: None };
        }
        bar.enable_steady_tick(STEP);
        let poll = tokio::spawn(follow(client.clone(), model.to_owned(), bar.clone()));
        Self { bar, poll: Some(poll) }
    }

    /// Takes it off the screen; again does nothing.
    pub(crate) fn end(&self) {
        if let Some(poll) = &self.poll {
            poll.abort();
        }
        self.bar.finish_and_clear();
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.end();
    }
}

async fn follow(client: Client, model: String, bar: ProgressBar) {
    let mut before = None;
    loop {
        if let Ok(page) = client.get_text("/metrics").await {
            let page = Page::parse(&page);
            let Some(read) = page.value("poncho_model_prefilled_tokens_total", "model", &model) else { return };
            let start = *before.get_or_insert(read);
            if let Some(message) = message(&page, &model, read - start) {
                bar.set_message(message);
            }
        }
        tokio::time::sleep(POLL).await;
    }
}

/// `reading the prompt, 512 of 2048 tokens`; `None` if it cannot be told whose tokens they are.
fn message(page: &Page, model: &str, read: f64) -> Option<String> {
    let of_model = |name: &str| page.value(name, "model", model);
    let is_alone = of_model("poncho_model_queue_depth") == Some(1.0);
    let all = of_model("poncho_model_last_hit_prompt_tokens")? - of_model("poncho_model_last_hit_read_tokens")?;
    (is_alone && read > 0.0 && read <= all).then(|| format!("reading the prompt, {read:.0} of {all:.0} tokens"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_counted_only_while_nobody_else_is_served() {
        let page = |queue: u32| {
            Page::parse(&format!(
                "poncho_model_queue_depth{{model=\"m\"}} {queue}\n\
                 poncho_model_last_hit_prompt_tokens{{model=\"m\",hit=\"cold\"}} 2048\n\
                 poncho_model_last_hit_read_tokens{{model=\"m\",hit=\"cold\"}} 48\n"
            ))
        };
        assert_eq!(message(&page(1), "m", 512.0).as_deref(), Some("reading the prompt, 512 of 2000 tokens"));
        assert_eq!(message(&page(1), "m", 0.0), None, "the numbers may still be those of the request before");
        assert_eq!(message(&page(1), "m", 2001.0), None);
        assert_eq!(message(&page(2), "m", 512.0), None);
        assert_eq!(message(&page(1), "other", 512.0), None);
    }
}
