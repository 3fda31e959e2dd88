//! The spinner before a reply begins: how long it takes, and how much of the prompt is processed.
//!
//! Shown on standard error if that is a terminal. The numbers come from the server's `/metrics` page; they are shown only
//! while the model has no other request, because otherwise they would be the sum of several prompts.

use std::time::Duration;

use poncho_client::Client;
use poncho_terminal::{Progress, Unit};
use tokio::task::JoinHandle;

use crate::client::prometheus::Page;

/// Pause between two requests for the page.
const POLL: Duration = Duration::from_millis(250);

/// A spinner that is cleared when it is dropped.
pub(crate) struct Waiting {
    progress: Progress,
    poll: Option<JoinHandle<()>>,
}

impl Waiting {
    /// Begins to wait for a reply of this model.
    pub(crate) fn begin(client: &Client, model: &str) -> Self {
        let progress = Progress::on_terminal_only();
        if progress.is_hidden() {
            return Self { progress, poll: None };
        }
        progress.begin("processing the prompt", Unit::Nothing, None);
        let poll = tokio::spawn(follow(client.clone(), model.to_owned(), progress.clone()));
        Self { progress, poll: Some(poll) }
    }

    /// Clears the spinner; a second call does nothing.
    pub(crate) fn end(&self) {
        if let Some(poll) = &self.poll {
            poll.abort();
        }
        self.progress.clear();
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.end();
    }
}

async fn follow(client: Client, model: String, progress: Progress) {
    let mut before = None;
    loop {
        if let Ok(page) = client.get_text("/metrics").await {
            let page = Page::parse(&page);
            let Some(read) = page.value("poncho_model_prefilled_tokens_total", "model", &model) else { return };
            let start = *before.get_or_insert(read);
            if let Some(message) = message(&page, &model, read - start) {
                progress.rename(&message);
            }
        }
        tokio::time::sleep(POLL).await;
    }
}

/// `processing the prompt, 512 of 2048 tokens`; `None` if the tokens may belong to another request.
fn message(page: &Page, model: &str, read: f64) -> Option<String> {
    let of_model = |name: &str| page.value(name, "model", model);
    let is_alone = of_model("poncho_model_queue_depth") == Some(1.0);
    let all = of_model("poncho_model_last_hit_prompt_tokens")? - of_model("poncho_model_last_hit_cached_tokens")?;
    (is_alone && read > 0.0 && read <= all).then(|| format!("processing the prompt, {read:.0} of {all:.0} tokens"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_shown_only_for_a_single_request() {
        let page = |queue: u32| {
            Page::parse(&format!(
                "poncho_model_queue_depth{{model=\"m\"}} {queue}\n\
                 poncho_model_last_hit_prompt_tokens{{model=\"m\",hit=\"cold\"}} 2048\n\
                 poncho_model_last_hit_cached_tokens{{model=\"m\",hit=\"cold\"}} 48\n"
            ))
        };
        assert_eq!(message(&page(1), "m", 512.0).as_deref(), Some("processing the prompt, 512 of 2000 tokens"));
        assert_eq!(message(&page(1), "m", 0.0), None, "the numbers may still be those of the previous request");
        assert_eq!(message(&page(1), "m", 2001.0), None);
        assert_eq!(message(&page(2), "m", 512.0), None);
        assert_eq!(message(&page(1), "other", 512.0), None);
    }
}
