//! Bar charts as SVG files: one group of bars a row, a whisker for the quartiles.
//!
//! Used by the comparison and the matrix for `--plot`. Written by hand because it is a few rectangles. All text is escaped:
//! names come from users. Colours are readable on white and on black, and nothing but the file itself is needed to see it.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context;

use crate::measure::stats::Spread;

const LEFT: f64 = 250.0;
const BAR_AREA: f64 = 480.0;
const WIDTH: f64 = LEFT + BAR_AREA + 110.0;
const BAR: f64 = 14.0;
const GAP: f64 = 12.0;
const TOP: f64 = 64.0;
const COLOURS: [&str; 4] = ["#2f7ed8", "#d9822b", "#4a9c5d", "#8b6bb1"];
/// From this factor between the longest and the shortest bar on, the short ones vanish on a plain scale.
const LOGARITHMIC_FROM: f64 = 30.0;

/// A chart.
#[derive(Debug)]
pub(crate) struct Chart {
    pub(crate) title: String,
    pub(crate) unit: String,
    /// What the bars of a group stand for.
    pub(crate) series: Vec<String>,
    pub(crate) groups: Vec<Group>,
}

/// The bars of one row, in the order of the series; `None` where nothing was measured.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) label: String,
    pub(crate) bars: Vec<Option<Spread>>,
}

/// How long a bar of a value is.
struct Scale {
    least: f64,
    most: f64,
    logarithmic: bool,
}

impl Scale {
    fn of(groups: &[Group]) -> Self {
        let values = || groups.iter().flat_map(|group| &group.bars).flatten().map(|spread| spread.median.max(0.0));
        let most = groups.iter().flat_map(|group| &group.bars).flatten().map(|bar| bar.high).fold(0.0, f64::max);
        let least = values().filter(|value| *value > 0.0).fold(f64::INFINITY, f64::min);
        Self { least: least / 2.0, most, logarithmic: least.is_finite() && most / least >= LOGARITHMIC_FROM }
    }

    fn length(&self, value: f64) -> f64 {
        if value <= 0.0 || self.most <= 0.0 {
            return 0.0;
        }
        let share = if self.logarithmic {
            (value / self.least).ln().max(0.0) / (self.most / self.least).ln()
        } else {
            value / self.most
        };
        BAR_AREA * share.clamp(0.0, 1.0)
    }
}

impl Chart {
    /// Writes the chart as a file of this name.
    pub(crate) fn write(&self, folder: &Path, name: &str) -> anyhow::Result<()> {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
        let path = folder.join(format!("{name}.svg"));
        std::fs::write(&path, self.render()).with_context(|| format!("cannot write {}", path.display()))
    }

    pub(crate) fn render(&self) -> String {
        let scale = Scale::of(&self.groups);
        let group_height = BAR * self.series.len().max(1) as f64 + GAP;
        let height = TOP + group_height * self.groups.len() as f64 + 16.0;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH:.0} {height:.0}\" width=\"{WIDTH:.0}\" \
             height=\"{height:.0}\" font-family=\"sans-serif\" font-size=\"12\" fill=\"#777\">\n"
        );
        let kind = if scale.logarithmic { ", logarithmic" } else { "" };
        let title = format!("{} ({}{kind})", self.title, self.unit);
        text(&mut svg, (10.0, 20.0), "font-size=\"15\"", &title);
        for ((place, series), colour) in (0_u32..).zip(&self.series).zip(COLOURS.iter().cycle()) {
            let x = LEFT + f64::from(place) * 140.0;
            rectangle(&mut svg, [x, 32.0, 12.0, 12.0], colour);
            text(&mut svg, (x + 18.0, 42.0), "", series);
        }
        for (row, group) in (0_u32..).zip(&self.groups) {
            let top = TOP + f64::from(row) * group_height;
            let middle = top + BAR * self.series.len() as f64 / 2.0 + 4.0;
            text(&mut svg, (LEFT - 8.0, middle), "text-anchor=\"end\"", &group.label);
            for ((place, bar), colour) in (0_u32..).zip(&group.bars).zip(COLOURS.iter().cycle()) {
                let y = top + f64::from(place) * BAR;
                let Some(spread) = bar else {
                    text(&mut svg, (LEFT + 4.0, y + BAR - 3.0), "", "not measured");
                    continue;
                };
                let end = LEFT + scale.length(spread.median);
                rectangle(&mut svg, [LEFT, y, (end - LEFT).max(1.0), BAR - 2.0], colour);
                let whisker = (LEFT + scale.length(spread.low), LEFT + scale.length(spread.high));
                let line = y + BAR / 2.0 - 1.0;
                // Writing to a string cannot fail.
                let _ = writeln!(
                    svg,
                    "<line x1=\"{:.1}\" y1=\"{line:.1}\" x2=\"{:.1}\" y2=\"{line:.1}\" stroke=\"#777\"/>",
                    whisker.0, whisker.1
                );
                let at = (end.max(whisker.1) + 5.0, y + BAR - 3.0);
                text(&mut svg, at, "", &shown(spread.median));
            }
        }
        svg.push_str("</svg>\n");
        svg
    }
}

fn rectangle(svg: &mut String, [x, y, width, height]: [f64; 4], colour: &str) {
    let _ = writeln!(
        svg,
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{colour}\"/>"
    );
}

fn text(svg: &mut String, (x, y): (f64, f64), attributes: &str, content: &str) {
    let space = if attributes.is_empty() { "" } else { " " };
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\"{space}{attributes}>{}</text>", escaped(content));
}

fn escaped(text: &str) -> String {
    // A control character is not allowed in XML, even escaped.
    let text: String = text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A number with three digits that count.
pub(crate) fn shown(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 100.0 || size == 0.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        size if size >= 0.1 => 3,
        _ => 4,
    };
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(median: f64) -> Option<Spread> {
        Some(Spread { low: median * 0.9, median, high: median * 1.2, count: 3 })
    }

    fn chart(groups: Vec<(&str, Vec<Option<Spread>>)>) -> Chart {
        let groups = groups.into_iter().map(|(label, bars)| Group { label: label.to_owned(), bars }).collect();
        Chart { title: "a < b & \"c\"".to_owned(), unit: "ms".to_owned(), series: vec!["x".into(), "y".into()], groups }
    }

    fn widths(document: &roxmltree::Document<'_>) -> Vec<f64> {
        let bars = document.descendants().filter(|node| node.has_tag_name(("http://www.w3.org/2000/svg", "rect")));
        // The first ones are the legend.
        bars.skip(2).map(|bar| bar.attribute("width").unwrap().parse().unwrap()).collect()
    }

    #[test]
    fn charts_are_well_formed_whatever_the_names_are() {
        let rendered =
            chart(vec![("<script>&\u{7}", vec![spread(3.0), None]), ("", vec![spread(0.0), spread(6.0)])]).render();
        let document = roxmltree::Document::parse(&rendered).unwrap();
        let texts: Vec<&str> = document.descendants().filter_map(|node| node.text()).collect();
        assert!(texts.contains(&"a < b & \"c\" (ms)"), "{texts:?}");
        assert!(texts.contains(&"<script>& ") && texts.contains(&"not measured"), "{texts:?}");
    }

    #[test]
    fn bars_are_as_long_as_their_values() {
        let rendered = chart(vec![("r", vec![spread(50.0), spread(100.0)])]).render();
        let bars = widths(&roxmltree::Document::parse(&rendered).unwrap());
        assert!((bars[0] * 2.0 - bars[1]).abs() < 0.3, "{bars:?}");
        assert!(!rendered.contains("logarithmic"));
    }

    #[test]
    fn far_apart_values_get_a_logarithmic_scale_and_stay_in_order() {
        let rendered =
            chart(vec![("r", vec![spread(1.0), spread(10_000.0)]), ("s", vec![spread(100.0), None])]).render();
        let bars = widths(&roxmltree::Document::parse(&rendered).unwrap());
        assert!(rendered.contains("logarithmic"));
        assert!(bars[0] > 10.0 && bars[0] < bars[2] && bars[2] < bars[1] && bars[1] <= BAR_AREA, "{bars:?}");
    }

    #[test]
    fn an_empty_chart_is_still_a_picture() {
        assert!(roxmltree::Document::parse(&chart(Vec::new()).render()).is_ok());
        assert!(roxmltree::Document::parse(&chart(vec![("r", vec![spread(0.0), None])]).render()).is_ok());
    }

    #[test]
    fn numbers_keep_three_digits() {
        assert_eq!([1234.5, 12.34, 1.234, 0.1234, 0.0].map(shown), ["1234", "12.3", "1.23", "0.123", "0"]);
    }
}
