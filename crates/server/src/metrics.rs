//! The page for Prometheus: cache counters, what the models do, and how long requests took.
//!
//! Replies record their times here, the outer layer counts answers, and `render` writes the page. Cache and model
//! numbers are read when the page is asked for and never copied. It must never grow with what clients send: labels are
//! models, hit kinds, routes and statuses.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use poncho_cache::{Cache, HitKind};
use poncho_engine::{Model, Phase};

/// Upper bounds in seconds: from a token out of the cache to the prefill of a book on a small machine.
const BOUNDS: [f64; 16] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];

/// What the server measured itself.
#[derive(Default)]
pub(crate) struct Metrics {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By model and hit kind.
    first_token: BTreeMap<(String, &'static str), Histogram>,
    duration: BTreeMap<(String, &'static str), Histogram>,
    /// By route and status.
    answers: BTreeMap<(String, u16), u64>,
}

#[derive(Default, Clone)]
struct Histogram {
    /// One for each bound, not yet summed up.
    buckets: [u64; BOUNDS.len()],
    count: u64,
    sum: f64,
}

impl Histogram {
    fn observe(&mut self, time: Duration) {
        let seconds = time.as_secs_f64();
        self.count += 1;
        self.sum += seconds;
        if let Some((bucket, _)) = self.buckets.iter_mut().zip(BOUNDS).find(|(_, bound)| seconds <= *bound) {
            *bucket += 1;
        }
    }
}

/// How long a finished request took.
pub(crate) struct Times {
    /// How its prompt was found.
    pub(crate) hit: HitKind,
    /// From its arrival to the first token; `None` if there was none.
    pub(crate) first_token: Option<Duration>,
    /// From its arrival to its end.
    pub(crate) total: Duration,
}

impl Metrics {
    /// A request was served.
    pub(crate) fn request_finished(&self, model: &str, times: &Times) {
        let label = || (model.to_owned(), times.hit.as_str());
        let mut state = self.lock();
        if let Some(first_token) = times.first_token {
            state.first_token.entry(label()).or_default().observe(first_token);
        }
        state.duration.entry(label()).or_default().observe(times.total);
    }

    /// An answer left; `route` is the pattern of the path, not the path.
    pub(crate) fn answered(&self, route: &str, status: u16) {
        *self.lock().answers.entry((route.to_owned(), status)).or_default() += 1;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The whole page.
    pub(crate) fn render(&self, cache: &Cache, models: &[Model], in_flight: usize) -> String {
        let mut page = Page::default();
        page.one("poncho_http_in_flight", "gauge", "Requests being answered.", in_flight as u64);
        {
            let state = self.lock();
            page.head("poncho_http_responses_total", "counter", "Answers by route and status.");
            for ((route, status), count) in &state.answers {
                let status = status.to_string();
                page.sample("poncho_http_responses_total", &[("route", route), ("status", &status)], count);
            }
            page.histograms("poncho_time_to_first_token_seconds", "Arrival to first token.", &state.first_token);
            page.histograms("poncho_request_duration_seconds", "Arrival to end of reply.", &state.duration);
        }
        cache_part(&mut page, cache);
        model_part(&mut page, models);
        page.0
    }
}

fn cache_part(page: &mut Page, cache: &Cache) {
    let counters = cache.counters();
    for (name, value) in counters.fields() {
        page.one(&format!("poncho_cache_{name}_total"), "counter", "See the cache's table of counters.", value);
    }
    page.head("poncho_cache_tier_bytes", "gauge", "Bytes held per tier.");
    for (tier, bytes, _) in counters.tiers() {
        page.sample("poncho_cache_tier_bytes", &[("tier", tier.as_str())], bytes);
    }
    page.head("poncho_cache_tier_rows", "gauge", "Rows held per tier.");
    for (tier, _, rows) in counters.tiers() {
        page.sample("poncho_cache_tier_rows", &[("tier", tier.as_str())], rows);
    }
    page.head("poncho_cache_tier_on", "gauge", "1 while the tier works, 0 while it is switched off.");
    for health in cache.health() {
        page.sample("poncho_cache_tier_on", &[("tier", health.tier.as_str())], u8::from(health.off.is_none()));
    }
    page.one("poncho_cache_write_queue", "gauge", "Saves that wait for a writer.", cache.queue_depth() as u64);
    page.one("poncho_cache_pinned_rows", "gauge", "Rows that are being read.", cache.pinned_rows() as u64);
    page.one("poncho_cache_index_bytes", "gauge", "Memory of the index.", cache.index_bytes() as u64);
}

fn model_part(page: &mut Page, models: &[Model]) {
    const PHASES: [Phase; 5] = [Phase::Starting, Phase::Idle, Phase::Prefilling, Phase::Generating, Phase::Stopped];
    let reports: Vec<_> = models.iter().map(|model| (model.id(), model.status())).collect();
    page.head("poncho_model_phase", "gauge", "1 for what the model is doing.");
    for (id, report) in &reports {
        for phase in PHASES {
            let labels = [("model", *id), ("phase", phase.as_str())];
            page.sample("poncho_model_phase", &labels, u8::from(report.phase == phase));
        }
    }
    type Read = fn(&poncho_engine::StatusReport) -> u64;
    let numbers: [(&str, &str, &str, Read); 10] = [
        ("pending", "gauge", "Requests that wait for a sequence.", |report| report.pending as u64),
        ("queue_depth", "gauge", "Requests that have not ended.", |report| report.queue_depth as u64),
        ("active", "gauge", "Requests that run.", |report| report.active as u64),
        ("sessions", "gauge", "Sessions that hold a sequence.", |report| report.sessions as u64),
        ("ticks_total", "counter", "Decode calls.", |report| report.ticks),
        ("prefilled_tokens_total", "counter", "Prompt tokens computed.", |report| report.prefilled_tokens),
        ("generated_tokens_total", "counter", "Tokens drawn.", |report| report.generated_tokens),
        ("decode_nanos_total", "counter", "Time in decode calls.", |report| report.decode_nanos),
        ("overhead_nanos_total", "counter", "Time between decode calls.", |report| report.overhead_nanos),
        ("starts_total", "counter", "Times that the worker was started.", |report| report.starts),
    ];
    for (name, kind, help, read) in numbers {
        let name = format!("poncho_model_{name}");
        page.head(&name, kind, help);
        for (id, report) in &reports {
            page.sample(&name, &[("model", id)], read(report));
        }
    }
    let hits: Vec<_> = reports.iter().filter_map(|(id, report)| Some((*id, report.last_hit?))).collect();
    page.head("poncho_model_last_hit_read_tokens", "gauge", "Tokens that the last request found.");
    for (id, hit) in &hits {
        page.sample("poncho_model_last_hit_read_tokens", &[("model", id), ("hit", hit.kind.as_str())], hit.read);
    }
    page.head("poncho_model_last_hit_prompt_tokens", "gauge", "Tokens of the last request's prompt.");
    for (id, hit) in &hits {
        page.sample("poncho_model_last_hit_prompt_tokens", &[("model", id), ("hit", hit.kind.as_str())], hit.prompt);
    }
}

/// The text format of Prometheus, version 0.0.4. Writing into a string cannot fail.
#[derive(Default)]
struct Page(String);

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        let labels: Vec<String> = labels.iter().map(|(key, text)| format!("{key}=\"{}\"", escape(text))).collect();
        let _ = if labels.is_empty() {
            writeln!(self.0, "{name} {value}")
        } else {
            writeln!(self.0, "{name}{{{}}} {value}", labels.join(","))
        };
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: u64) {
        self.head(name, kind, help);
        self.sample(name, &[], value);
    }

    fn histograms(&mut self, name: &str, help: &str, family: &BTreeMap<(String, &'static str), Histogram>) {
        self.head(name, "histogram", help);
        for ((model, hit), histogram) in family {
            let mut below = 0;
            let bucket = format!("{name}_bucket");
            for (count, bound) in histogram.buckets.iter().zip(BOUNDS) {
                below += count;
                self.sample(&bucket, &[("model", model), ("hit", hit), ("le", &bound.to_string())], below);
            }
            self.sample(&bucket, &[("model", model), ("hit", hit), ("le", "+Inf")], histogram.count);
            self.sample(&format!("{name}_sum"), &[("model", model), ("hit", hit)], histogram.sum);
            self.sample(&format!("{name}_count"), &[("model", model), ("hit", hit)], histogram.count);
        }
    }
}

fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use poncho_cache::CacheConfig;

    use super::*;

    #[test]
    fn buckets_are_cumulative_and_nothing_is_lost_above_the_last() {
        let metrics = Metrics::default();
        for millis in [1, 3, 3, 20_000, 400_000] {
            let total = Duration::from_millis(millis);
            metrics.request_finished("m\"x", &Times { hit: HitKind::Partial, first_token: None, total });
        }
        metrics.answered("/v1/models/{id}", 404);
        let cache = Cache::open(CacheConfig::in_memory(1 << 20)).unwrap();
        let page = metrics.render(&cache, &[], 3);
        let label = "poncho_request_duration_seconds_bucket{model=\"m\\\"x\",hit=\"partial\",le=";
        for (le, count) in [("0.001", 1), ("0.0025", 1), ("0.005", 3), ("10", 3), ("30", 4), ("300", 4), ("+Inf", 5)] {
            assert!(page.contains(&format!("{label}\"{le}\"}} {count}\n")), "{le}\n{page}");
        }
        assert!(page.contains("poncho_request_duration_seconds_sum{model=\"m\\\"x\",hit=\"partial\"} 420.007\n"));
        assert!(!page.contains("first_token_seconds_count"), "nothing was observed there");
        assert!(page.contains("poncho_http_in_flight 3\n"));
        assert!(page.contains("poncho_http_responses_total{route=\"/v1/models/{id}\",status=\"404\"} 1\n"));
        assert!(cache.counters().fields().all(|(name, _)| page.contains(&format!("\nponcho_cache_{name}_total 0\n"))));
        assert!(page.contains("poncho_cache_tier_rows{tier=\"ram\"} 0\n"));
    }

    #[test]
    fn every_name_is_described_once() {
        let cache = Cache::open(CacheConfig::in_memory(1 << 20)).unwrap();
        let page = Metrics::default().render(&cache, &[], 0);
        let mut types: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
        let all = types.len();
        types.sort_unstable();
        types.dedup();
        assert_eq!(types.len(), all);
    }
}
