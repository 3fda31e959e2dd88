//! The plot of the results: one bar a scenario, as SVG. The names are those of `main.rs`, so nothing is escaped.

use std::fmt::Write as _;

const LEFT: f64 = 270.0;
const AREA: f64 = 460.0;
const STEP: f64 = 24.0;

/// Bars between 0 and 1.
pub(crate) fn bars(title: &str, bars: &[(&str, f64)]) -> String {
    let (width, height) = (LEFT + AREA + 70.0, 44.0 + STEP * bars.len() as f64);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
         height=\"{height:.0}\" font-family=\"sans-serif\" font-size=\"12\" fill=\"#777\">\n\
         <text x=\"10\" y=\"20\" font-size=\"15\">{title}</text>\n"
    );
    for (place, (name, value)) in (0_u32..).zip(bars) {
        let top = 36.0 + STEP * f64::from(place);
        let (line, end) = (top + 12.0, LEFT + AREA * value.clamp(0.0, 1.0));
        // Writing to a string cannot fail.
        let _ = writeln!(svg, "<text x=\"{:.0}\" y=\"{line:.0}\" text-anchor=\"end\">{name}</text>", LEFT - 8.0);
        let _ = writeln!(
            svg,
            "<rect x=\"{LEFT:.0}\" y=\"{top:.0}\" width=\"{:.1}\" height=\"14\" fill=\"#2f7ed8\"/>",
            end - LEFT
        );
        let _ = writeln!(svg, "<text x=\"{:.1}\" y=\"{line:.0}\">{value:.3}</text>", end + 5.0);
    }
    svg.push_str("</svg>\n");
    svg
}
