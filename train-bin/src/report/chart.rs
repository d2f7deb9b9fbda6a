//! Charts: curves and bars in SVG; their text is part of the page.
//!
//! The SVG is stretched to its container while lines keep their width (`vector-effect`); labels are placed around it in
//! percent. So text has the same size on every screen.

use std::fmt::Write;

use serde::Serialize;

use super::scale::{Scale, Spacing, number};
use super::thin::{Point, smoothed, span, with_extremes, with_last};

/// Width and height of the SVG's coordinates.
const SIZE: f64 = 1000.0;

/// Number of colours in the style sheet.
const COLOURS: usize = 6;

/// Number of dash patterns in the style sheet.
const DASHES: usize = 5;

/// A chart on the page.
#[derive(Debug, Serialize)]
pub(crate) struct Chart {
    /// Its element id.
    id: &'static str,
    title: &'static str,
    /// Unit of the values, and remarks.
    unit: String,
    x_title: &'static str,
    /// A description for screen readers.
    description: String,
    x: Vec<Tick>,
    y: Vec<Tick>,
    curves: Vec<Drawn>,
    marks: Vec<Mark>,
    bars: Vec<Bar>,
    legend: Vec<Entry>,
    is_wide: bool,
    #[serde(skip)]
    scale: Scale,
}

/// A tick: its position in percent from the left or the top, and its label.
#[derive(Debug, Serialize)]
struct Tick {
    at: f64,
    label: String,
}

/// A curve: an SVG path, and the values shown at the pointer.
#[derive(Debug, Serialize)]
struct Drawn {
    class: String,
    path: String,
    /// Its name at the pointer; empty for a curve without values there.
    name: String,
    colour: usize,
    /// The x and y values of the path's points.
    xs: String,
    ys: String,
}

/// A vertical line at a value of the x axis.
#[derive(Debug, Serialize)]
struct Mark {
    at: f64,
    label: String,
    is_right: bool,
}

#[derive(Debug, Serialize)]
struct Bar {
    x: String,
    y: String,
    width: String,
    height: String,
    label: String,
}

#[derive(Debug, Serialize)]
struct Entry {
    class: String,
    label: String,
}

/// A curve before it is drawn.
pub(crate) struct Curve {
    /// Its name in the legend; empty for a single curve.
    pub(crate) label: String,
    /// Number of its colour and dash pattern.
    pub(crate) style: usize,
    /// In ascending order of x.
    pub(crate) points: Vec<Point>,
    /// How it is drawn.
    pub(crate) line_style: LineStyle,
}

/// How a curve is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LineStyle {
    /// As a plain line.
    Plain,
    /// As its running mean, with the points faint behind it.
    Smoothed,
    /// With a dot at each point.
    Dotted,
    /// Faint, behind the others.
    Faint,
}

/// Titles and options of a chart.
pub(crate) struct Titles {
    pub(crate) id: &'static str,
    pub(crate) title: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) x: &'static str,
    pub(crate) spacing: Spacing,
    /// Whether the axis of values may be logarithmic.
    pub(crate) may_be_log: bool,
    pub(crate) is_wide: bool,
}

/// The CSS classes of a style: a colour and a dash pattern, whose combinations are distinct.
pub(crate) fn classes(style: usize) -> String {
    format!("c{} d{}", style % COLOURS, style % DASHES)
}

impl Chart {
    /// Draws curves; `None` without any point.
    pub(crate) fn of(titles: &Titles, curves: &[Curve]) -> Option<Self> {
        let all = || curves.iter().flat_map(|curve| &curve.points);
        all().next()?;
        let (mut first, last) =
            all().fold((f64::INFINITY, 0f64), |(low, high), (x, _)| (low.min(*x), high.max(*x)));
        if titles.spacing == Spacing::Linear && first < 0.1 * last {
            first = 0.0;
        }
        let x = Scale::exact(first, last, titles.spacing);
        // Faint curves may be cut off at the top, so that peaks do not flatten the others.
        let strong = curves.iter().filter(|curve| curve.line_style != LineStyle::Faint);
        let highest = strong
            .flat_map(|curve| &curve.points)
            .fold(f64::NEG_INFINITY, |highest, (_, value)| highest.max(*value));
        let ceiling = highest + 0.25 * highest.abs();
        let values = all().map(|(_, value)| *value).filter(|value| *value <= ceiling);
        let y = if titles.may_be_log { Scale::of(values) } else { Scale::linear(values) };
        let mut chart = Self::empty(titles, &x, &y);
        let curves = || curves.iter().filter(|curve| !curve.points.is_empty());
        let span_of = |curve: &Curve| {
            let span = span(curve.points.len());
            (curve.line_style == LineStyle::Smoothed && span > 1).then_some(span)
        };
        let spans: Vec<usize> = curves().filter_map(span_of).collect();
        // Faint curves first, so that they do not cover the others.
        for curve in curves().filter(|curve| span_of(curve).is_some()) {
            chart.faint(&classes(curve.style), &with_extremes(&curve.points), &x, &y);
        }
        for curve in curves().filter(|curve| curve.line_style == LineStyle::Faint) {
            let class = classes(curve.style);
            chart.faint(&class, &with_extremes(&curve.points), &x, &y);
            let class = format!("raw {class}");
            chart.legend.push(Entry { class, label: curve.label.clone() });
        }
        for curve in curves().filter(|curve| curve.line_style != LineStyle::Faint) {
            let line = match span_of(curve) {
                Some(span) => with_last(&smoothed(&curve.points, span)),
                None => with_extremes(&curve.points),
            };
            chart.strong(&classes(curve.style), curve, &line, &x, &y);
        }
        let faint = curves().find(|curve| span_of(curve).is_some());
        chart.explain_spans(&spans, faint.map_or(0, |curve| curve.style));
        // A single curve needs no legend.
        chart.legend.retain(|entry| !entry.label.is_empty());
        if y.is_log() {
            chart.add_to_unit("logarithmic");
        }
        Some(chart)
    }

    /// Draws a histogram of bars: left and right border, count and label.
    pub(crate) fn bars(titles: &Titles, bars: &[(f64, f64, f64, String)]) -> Option<Self> {
        let (first, last) = (bars.first()?, bars.last()?);
        let x = Scale::exact(first.0, last.1, Spacing::Linear);
        let y = Scale::of(bars.iter().map(|bar| bar.2).chain([0.0]));
        let mut chart = Self::empty(titles, &x, &y);
        let place = |value: f64| format!("{:.1}", value * SIZE);
        chart.bars = bars
            .iter()
            .filter(|bar| bar.2 > 0.0)
            .map(|(from, to, count, label)| {
                let (left, right, height) = (x.at(*from), x.at(*to), y.at(*count));
                let gap = 0.12 * (right - left);
                Bar {
                    x: place(left + gap / 2.0),
                    y: place(1.0 - height),
                    width: place(right - left - gap),
                    height: place(height),
                    label: label.clone(),
                }
            })
            .collect();
        let peak = bars.iter().max_by(|a, b| a.2.total_cmp(&b.2));
        chart.description = format!(
            "{}: the largest bin is {}",
            titles.title,
            peak.map(|bar| bar.3.as_str()).unwrap_or("none")
        );
        Some(chart)
    }

    /// Adds a labelled vertical line.
    pub(crate) fn mark(&mut self, value: f64, label: String) {
        let at = self.scale.at(value);
        self.marks.push(Mark { at: percent(at), label, is_right: at > 0.6 });
    }

    /// Explains in the legend which lines are running means and which are single steps.
    fn explain_spans(&mut self, spans: &[usize], style: usize) {
        let (Some(lowest), Some(highest)) = (spans.iter().min(), spans.iter().max()) else {
            return;
        };
        let over =
            if lowest == highest { format!("{lowest}") } else { format!("{lowest} to {highest}") };
        let text = format!("running mean over {over} steps");
        match &mut self.legend[..] {
            [only] if only.label.is_empty() => only.label = text,
            _ => self.add_to_unit(&text),
        }
        let class = format!("raw {}", classes(style));
        self.legend.push(Entry { class, label: "each step".to_owned() });
    }

    fn add_to_unit(&mut self, text: &str) {
        if !self.unit.is_empty() {
            self.unit.push_str(" · ");
        }
        self.unit.push_str(text);
    }

    fn empty(titles: &Titles, x: &Scale, y: &Scale) -> Self {
        let ticks = |scale: &Scale, from_end: bool| {
            let tick = |(tick, label): (&f64, String)| {
                let at = scale.at(*tick);
                Tick { at: percent(if from_end { 1.0 - at } else { at }), label }
            };
            scale.ticks.iter().zip(scale.labels()).map(tick).collect()
        };
        Self {
            id: titles.id,
            title: titles.title,
            unit: titles.unit.to_owned(),
            x_title: titles.x,
            description: String::new(),
            x: ticks(x, false),
            y: ticks(y, true),
            curves: Vec::new(),
            marks: Vec::new(),
            bars: Vec::new(),
            legend: Vec::new(),
            is_wide: titles.is_wide,
            scale: x.clone(),
        }
    }

    fn faint(&mut self, style: &str, points: &[Point], x: &Scale, y: &Scale) {
        let (name, xs, ys) = (String::new(), String::new(), String::new());
        let class = format!("raw {style}");
        self.curves.push(Drawn { class, path: path(points, x, y), name, colour: 0, xs, ys });
    }

    fn strong(&mut self, style: &str, curve: &Curve, points: &[Point], x: &Scale, y: &Scale) {
        // A line through a single point is invisible.
        let is_dotted = curve.line_style == LineStyle::Dotted || points.len() == 1;
        if is_dotted {
            let dots = points.iter().fold(String::new(), |mut path, point| {
                let [x, y] = place(point, x, y);
                // A line of no length: its round ends are a dot.
                let _ = write!(path, "M{x:.1} {y:.1}h0");
                path
            });
            let (name, xs, ys) = (String::new(), String::new(), String::new());
            let class = format!("dots {style}");
            self.curves.push(Drawn { class, path: dots, name, colour: 0, xs, ys });
        }
        let joined =
            |of: &dyn Fn(&Point) -> String| points.iter().map(of).collect::<Vec<_>>().join(" ");
        self.curves.push(Drawn {
            class: format!("line {style}"),
            path: path(points, x, y),
            name: curve.label.clone(),
            colour: curve.style % COLOURS,
            xs: joined(&|(x, _)| number(*x)),
            ys: joined(&|(_, y)| number(*y)),
        });
        let class = if is_dotted { format!("{style} dotted") } else { style.to_owned() };
        self.legend.push(Entry { class, label: curve.label.clone() });
        if let (Some((_, first)), Some((step, last))) = (curve.points.first(), curve.points.last())
        {
            let (first, last, step) = (number(*first), number(*last), number(*step));
            let lead = if self.description.is_empty() { self.title } else { ";" };
            let label = [lead, &curve.label].join(" ");
            let text = format!("{}: from {first} to {last} at {step}", label.trim_end());
            self.description.push_str(&text);
        }
    }
}

fn percent(share: f64) -> f64 {
    (share * 1e4).round() / 100.0
}

fn place((at, value): &Point, x: &Scale, y: &Scale) -> [f64; 2] {
    [x.at(*at) * SIZE, (1.0 - y.at(*value)) * SIZE]
}

fn path(points: &[Point], x: &Scale, y: &Scale) -> String {
    let mut path = String::with_capacity(12 * points.len());
    for (n, point) in points.iter().enumerate() {
        let [x, y] = place(point, x, y);
        let command = if n == 0 { 'M' } else { 'L' };
        let _ = write!(path, "{command}{x:.1} {y:.1}");
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    const TITLES: Titles = Titles {
        id: "loss",
        title: "Loss",
        unit: "nats",
        x: "step",
        spacing: Spacing::Linear,
        may_be_log: true,
        is_wide: true,
    };

    fn curve(style: usize, points: Vec<Point>, line_style: LineStyle) -> Curve {
        Curve { label: format!("run {style}"), style, points, line_style }
    }

    #[test]
    fn points_are_placed_by_their_values() {
        let chart =
            Chart::of(&TITLES, &[curve(0, vec![(0.0, 0.0), (10.0, 4.0)], LineStyle::Plain)])
                .unwrap();
        let line = &chart.curves[0];
        // The axis ends at 4.16.
        assert_eq!(line.path, "M0.0 1000.0L1000.0 38.5");
        assert_eq!((line.xs.as_str(), line.ys.as_str()), ("0 10", "0 4"));
        let labels: Vec<&str> = chart.y.iter().map(|tick| tick.label.as_str()).collect();
        assert_eq!(labels, ["0", "1", "2", "3", "4"]);
        assert_eq!((chart.y[0].at, chart.y[4].at), (100.0, 3.85), "0 is at the bottom");
    }

    #[test]
    fn a_running_mean_is_drawn_over_its_points() {
        let points: Vec<Point> = (1..=400).map(|x| (f64::from(x), f64::from(x % 9))).collect();
        let chart = Chart::of(&TITLES, &[curve(1, points, LineStyle::Smoothed)]).unwrap();
        let classes: Vec<&str> = chart.curves.iter().map(|curve| curve.class.as_str()).collect();
        assert_eq!(classes, ["raw c1 d1", "line c1 d1"]);
        assert!(chart.unit.contains("running mean over 10 steps"), "{}", chart.unit);
        assert_eq!(chart.legend.len(), 2, "the mean, and each step");
        let line = &chart.curves[1];
        let points = line.path.matches(['M', 'L']).count();
        assert_eq!(line.xs.split(' ').count(), points);
        assert_eq!(line.ys.split(' ').count(), points);
    }

    #[test]
    fn only_faint_peaks_are_cut_off() {
        let faint = curve(0, vec![(0.0, 1.0), (5.0, 100.0), (10.0, 3.0)], LineStyle::Faint);
        let line = curve(0, vec![(0.0, 2.0), (10.0, 4.0)], LineStyle::Plain);
        let chart = Chart::of(&TITLES, &[faint, line]).unwrap();
        let labels: Vec<&str> = chart.y.iter().map(|tick| tick.label.as_str()).collect();
        assert_eq!(labels.last(), Some(&"4.0"), "{labels:?}");
        let [faint, line] = &chart.curves[..] else { panic!("{chart:?}") };
        assert!(faint.path.contains("L500.0 0.0"), "{}", faint.path);
        assert!(!faint.path.contains(" 1000.0") && !line.path.contains(" 0.0"), "{chart:?}");
    }

    #[test]
    fn one_point_is_a_dot_and_no_point_is_no_chart() {
        let chart = Chart::of(&TITLES, &[curve(0, vec![(1.0, 2.0)], LineStyle::Smoothed)]).unwrap();
        assert!(chart.curves.iter().any(|curve| curve.class.starts_with("dots")));
        assert!(!format!("{chart:?}").contains("NaN"));
        assert!(Chart::of(&TITLES, &[curve(0, Vec::new(), LineStyle::Plain)]).is_none());
        assert!(Chart::bars(&TITLES, &[]).is_none());
    }

    #[test]
    fn thirty_styles_are_distinct() {
        let styles: std::collections::BTreeSet<String> = (0..30).map(classes).collect();
        assert_eq!(styles.len(), 30);
    }
}
