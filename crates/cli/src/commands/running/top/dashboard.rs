//! The dashboard as one widget.
//!
//! Draws a view on the terminal and for `--once`. All texts in the view are harmless already, and parts that do not fit
//! are cut.

use poncho_terminal::show_bytes;
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Block, Borders, Paragraph, Row, Sparkline, Table, Widget};

use super::snapshot::{ModelFacts, RequestFacts, TierFacts};
use super::view::{View, prefilling};

/// Lines of the curve with its title.
const CURVE: u16 = 4;
/// Cells of a bar.
const BAR: usize = 20;

/// Columns of a terminal that shows everything of a model.
const WIDE: u16 = 100;

/// A column of the models.
struct Column {
    head: &'static str,
    width: Constraint,
    /// Left out where the terminal is narrow.
    is_extra: bool,
}

const fn column(head: &'static str, width: Constraint) -> Column {
    Column { head, width, is_extra: false }
}

const fn extra(head: &'static str, width: Constraint) -> Column {
    Column { head, width, is_extra: true }
}

const MODEL_COLUMNS: [Column; 10] = [
    column("MODEL", Constraint::Fill(1)),
    column("PHASE", Constraint::Length(10)),
    column("RUN", Constraint::Length(4)),
    column("WAIT", Constraint::Length(5)),
    extra("SESSIONS", Constraint::Length(8)),
    column("PREFILL/S", Constraint::Length(9)),
    column("DECODE/S", Constraint::Length(8)),
    column("TOK/STEP", Constraint::Length(8)),
    extra("SAVED", Constraint::Length(7)),
    column("LAST PROMPT", Constraint::Length(17)),
];

/// See the module.
pub(crate) struct Dashboard<'a> {
    pub(crate) view: &'a View,
}

impl Dashboard<'_> {
    /// Lines that show all of it.
    pub(crate) fn height(&self) -> u16 {
        self.heights().into_iter().fold(0, u16::saturating_add)
    }

    /// Of the parts from top to bottom: each list has a title and headings.
    fn heights(&self) -> [u16; 8] {
        let lines = |count: usize, more: u16| u16::try_from(count).unwrap_or(u16::MAX).saturating_add(more);
        let count = |of: fn(&super::snapshot::Snapshot) -> usize| self.view.latest.as_ref().map_or(0, of);
        let models = lines(count(|seen| seen.models.len()), 2);
        let tiers = lines(count(|seen| seen.tiers.len()), 2);
        let sessions = lines(count(|seen| seen.sessions.len()), 2);
        // An idle server has none to show.
        let requests = match count(|seen| seen.requests.len()) {
            0 => 0,
            count => lines(count, 2),
        };
        // A single snapshot has no curve.
        let curve = if self.view.curve.is_empty() { 1 } else { CURVE };
        [1, models, requests, tiers, 2, curve, sessions, 1]
    }
}

impl Widget for Dashboard<'_> {
    fn render(self, area: Rect, buffer: &mut Buffer) {
        let [head, models, requests, tiers, hits, curve, sessions, foot] = {
            let [head, models, requests, tiers, hits, curve, _, foot] = self.heights().map(Constraint::Length);
            Layout::vertical([head, models, requests, tiers, hits, curve, Constraint::Fill(1), foot]).areas(area)
        };
        self.head(head, buffer);
        self.models(models, buffer);
        self.requests(requests, buffer);
        self.tiers(tiers, buffer);
        self.hits(hits, buffer);
        self.curve(curve, buffer);
        self.sessions(sessions, buffer);
        Line::from("q quits").dim().render(foot, buffer);
    }
}

impl Dashboard<'_> {
    fn head(&self, area: Rect, buffer: &mut Buffer) {
        let View { place, latest, trouble, .. } = self.view;
        let line = match (trouble, latest) {
            (Some(trouble), _) => Line::from(format!("{place}  disconnected, retrying: {trouble}")).fg(Color::Red),
            (None, None) => Line::from(format!("{place}  connecting")),
            (None, Some(seen)) => Line::from(format!(
                "{place}  {:.0} in flight, {} rows, {} queued saves",
                seen.in_flight, seen.rows, seen.write_queue
            )),
        };
        line.bold().render(area, buffer);
    }

    fn models(&self, area: Rect, buffer: &mut Buffer) {
        let models = self.view.latest.as_ref().map(|seen| seen.models.as_slice()).unwrap_or_default();
        let is_wide = area.width >= WIDE;
        let shown = |cells: [String; MODEL_COLUMNS.len()]| {
            let cells = cells.into_iter().zip(MODEL_COLUMNS);
            Row::new(cells.filter(|(_, column)| is_wide || !column.is_extra).map(|(cell, _)| cell).collect::<Vec<_>>())
        };
        let rows = models.iter().map(|model| shown(self.model(model)));
        let widths = MODEL_COLUMNS.iter().filter(|column| is_wide || !column.is_extra).map(|column| column.width);
        let heads = shown(MODEL_COLUMNS.map(|column| column.head.to_owned()));
        let table = Table::new(rows, widths).header(heads.style(Style::new().dim()));
        Widget::render(table.block(titled("models")), area, buffer);
    }

    /// The cells of a model, in the order of the columns.
    fn model(&self, model: &ModelFacts) -> [String; MODEL_COLUMNS.len()] {
        let rate = self.view.rates.get(&model.id);
        // A single snapshot has no rates.
        let known = self.view.latest.as_ref().and_then(|seen| prefilling(seen, &model.id));
        let speed = |number: Option<f64>| number.map_or_else(|| "-".to_owned(), |number| format!("{number:.1}"));
        let last = model.last_hit.as_ref().map(|hit| format!("{} {:.0}/{:.0}", hit.kind, hit.cached, hit.prompt));
        [
            model.id.clone(),
            model.phase.clone(),
            format!("{:.0}", model.active),
            format!("{:.0}", model.pending),
            format!("{:.0}", model.sessions),
            speed(rate.map(|rate| rate.prefilled).or(known)),
            speed(rate.map(|rate| rate.generated)),
            model.per_step.map_or_else(|| "-".to_owned(), |tokens| format!("{tokens:.2}")),
            model.saved.map_or_else(|| "-".to_owned(), |seconds| format!("{seconds:.1} s")),
            last.unwrap_or_else(|| "-".to_owned()),
        ]
    }

    fn requests(&self, area: Rect, buffer: &mut Buffer) {
        let requests = self.view.latest.iter().flat_map(|seen| &seen.requests);
        let rows = requests.map(|request| {
            let speed = request.tokens_per_second.map_or_else(|| "-".to_owned(), |speed| format!("{speed:.1}"));
            Row::new([
                format!("{} {}", request.model, request.session).trim_end().to_owned(),
                request.stage.clone(),
                progress(request),
                request.cached.to_string(),
                request.generated.to_string(),
                speed,
                format!("{} s", request.age_ms / 1000),
            ])
        });
        let widths = [
            Constraint::Fill(1),
            Constraint::Length(10),
            Constraint::Length(20),
            Constraint::Length(8),
            Constraint::Length(8),
            Constraint::Length(9),
            Constraint::Length(7),
        ];
        let heads = ["MODEL AND SESSION", "STAGE", "PROMPT", "CACHED", "REPLY", "TOKENS/S", "AGE"];
        let table = Table::new(rows, widths).header(Row::new(heads).style(Style::new().dim()));
        Widget::render(table.block(titled("requests")), area, buffer);
    }

    fn tiers(&self, area: Rect, buffer: &mut Buffer) {
        let tiers = self.view.latest.as_ref().map(|seen| seen.tiers.as_slice()).unwrap_or_default();
        let rows = tiers.iter().map(|tier| {
            let state = tier.off.as_ref().map_or_else(|| fill(tier), |reason| format!("off: {reason}"));
            Row::new([tier.name.clone(), tier.rows.to_string(), show_bytes(tier.bytes), state])
        });
        let widths = [Constraint::Length(10), Constraint::Length(8), Constraint::Length(12), Constraint::Fill(1)];
        let heads = Row::new(["TIER", "ROWS", "SIZE", "FILL"]).style(Style::new().dim());
        Widget::render(Table::new(rows, widths).header(heads).block(titled("cache")), area, buffer);
    }

    fn hits(&self, area: Rect, buffer: &mut Buffer) {
        let hits = self.view.latest.iter().flat_map(|seen| &seen.hits);
        let hits: Vec<String> = hits.map(|(kind, count)| format!("{kind} {count:.0}")).collect();
        let text = if hits.is_empty() { "none yet".to_owned() } else { hits.join("   ") };
        Paragraph::new(text).block(titled("requests by hit")).render(area, buffer);
    }

    fn curve(&self, area: Rect, buffer: &mut Buffer) {
        let now = self.view.curve.back().map_or_else(|| "-".to_owned(), ToString::to_string);
        let block = titled(&format!("tokens generated per second: {now}"));
        let room = usize::from(block.inner(area).width);
        let skipped = self.view.curve.len().saturating_sub(room);
        let shown: Vec<u64> = self.view.curve.iter().skip(skipped).copied().collect();
        Sparkline::default().data(&shown).style(Style::new().fg(Color::Green)).block(block).render(area, buffer);
    }

    fn sessions(&self, area: Rect, buffer: &mut Buffer) {
        let sessions = self.view.latest.iter().flat_map(|seen| &seen.sessions);
        let rows =
            sessions.map(|session| Row::new([session.id.clone(), session.model.clone(), session.tokens.to_string()]));
        let widths = [Constraint::Fill(1), Constraint::Fill(1), Constraint::Length(10)];
        let heads = Row::new(["SESSION", "MODEL", "TOKENS"]).style(Style::new().dim());
        Widget::render(Table::new(rows, widths).header(heads).block(titled("sessions")), area, buffer);
    }
}

fn titled(title: &str) -> Block<'static> {
    Block::new().borders(Borders::TOP).title(format!(" {title} "))
}

/// How much of a prompt is cached or computed.
fn progress(request: &RequestFacts) -> String {
    let RequestFacts { processed, prompt, .. } = request;
    let share = u128::from(*processed) * 100 / u128::from((*prompt).max(1));
    format!("{processed}/{prompt} {share} %")
}

/// How full a tier is, as a bar and in percent.
fn fill(tier: &TierFacts) -> String {
    if tier.quota == 0 {
        return "-".to_owned();
    }
    let share = |of: usize| {
        let part = u128::from(tier.bytes) * of as u128 / u128::from(tier.quota);
        usize::try_from(part).unwrap_or(of).min(of)
    };
    let full = share(BAR);
    let bar = "#".repeat(full) + &".".repeat(BAR - full);
    format!("[{bar}] {} % of {}", share(100), show_bytes(tier.quota))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::running::top::snapshot::tests::example;

    fn drawn(view: &View, width: u16, height: u16) -> String {
        let area = Rect::new(0, 0, width, height);
        let mut buffer = Buffer::empty(area);
        Dashboard { view }.render(area, &mut buffer);
        let lines = buffer.content().chunks(usize::from(width).max(1));
        let lines = lines.map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>().trim_end().to_owned());
        lines.collect::<Vec<String>>().join("\n")
    }

    #[test]
    fn all_facts_are_drawn() {
        let mut view = View::new("127.0.0.1:8080");
        view.update(Ok(example()));
        let text = drawn(&view, 100, Dashboard { view: &view }.height());
        for expected in [
            "127.0.0.1:8080  2 in flight, 9 rows, 1 queued saves",
            "generating",
            "2.50     3.2 s",
            "partial 70/90",
            "518/2705 19 %",
            "107.5",
            "a s2 ",
            "32/32 100 %",
            "[#####...............] 25 % of 1.0 KiB",
            "off: no \u{241b}space",
            "cold 2   partial 5",
            "s1",
            "q quits",
        ] {
            assert!(text.contains(expected), "{expected} is missing in\n{text}");
        }
    }

    #[test]
    fn a_narrow_terminal_shows_the_names_of_models() {
        let mut view = View::new("here");
        let mut seen = example();
        "smollm2:135m".clone_into(&mut seen.models[0].id);
        view.update(Ok(seen));
        let text = drawn(&view, 80, 30);
        assert!(text.contains("smollm2:135m") && text.contains("partial 70/90") && !text.contains("SAVED"), "{text}");
        assert!(drawn(&view, 100, 30).contains("SAVED"));
    }

    #[test]
    fn a_server_that_is_gone_is_shown_with_what_was_seen_last() {
        let mut view = View::new("here");
        assert!(drawn(&view, 80, 20).contains("here  connecting"));
        view.update(Ok(example()));
        view.update(Err("refused".to_owned()));
        let text = drawn(&view, 80, 30);
        assert!(text.contains("disconnected, retrying: refused") && text.contains("generating"), "{text}");
    }

    #[test]
    fn any_size_can_be_drawn() {
        let mut view = View::new("here");
        view.update(Ok(example()));
        view.update(Ok(example()));
        for (width, height) in [(0, 0), (1, 1), (3, 2), (20, 5), (300, 100)] {
            let text = drawn(&view, width, height);
            assert!(text.lines().count() <= usize::from(height), "{width} x {height}");
        }
    }

    #[test]
    fn bars_are_never_longer_than_full() {
        let tier = |bytes, quota| TierFacts { bytes, quota, ..TierFacts::default() };
        assert_eq!(fill(&tier(5, 0)), "-");
        assert!(fill(&tier(u64::MAX, 1)).starts_with("[####################] 100 %"));
        assert!(fill(&tier(0, u64::MAX)).starts_with("[....................] 0 %"));
    }
}
