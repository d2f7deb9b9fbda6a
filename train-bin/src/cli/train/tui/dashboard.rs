//! Content and layout of the dashboard, independent of terminal and clock.

use std::collections::VecDeque;
use std::time::Duration;

use indicatif::FormattedDuration;
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{
    Axis, Block, BorderType, Chart, Dataset, Gauge, GraphType, Padding, Paragraph,
};

use crate::memory::footprint::Size;
use crate::run::metrics::row::StepRow;

/// Log lines that are kept.
const LINES: usize = 200;

/// Maximum points of a curve: a terminal has no more columns.
const POINTS: usize = 400;

/// Weight of earlier losses in the running mean.
const KEEP: f64 = 0.9;

/// What is shown of a run.
#[derive(Debug, Default)]
pub(crate) struct Dashboard {
    title: String,
    steps: u64,
    last: Option<StepRow>,
    /// The first step since the start or a resume, and the time elapsed then.
    first: Option<(u64, Duration)>,
    mean: Option<f64>,
    means: Vec<(f64, f64)>,
    evals: Vec<(f64, f64)>,
    rates: Vec<(f64, f64)>,
    speeds: Vec<(f64, f64)>,
    lines: VecDeque<String>,
    is_stopping: bool,
}

impl Dashboard {
    pub(crate) fn new(title: String) -> Self {
        Self { title, ..Self::default() }
    }

    /// Sets the total number of steps.
    pub(crate) fn set_steps(&mut self, steps: u64) {
        self.steps = steps;
    }

    /// Adds a step, with the time elapsed since the start.
    pub(crate) fn add_step(&mut self, row: StepRow, elapsed: Duration) {
        let StepRow { metrics, tokens_per_s, .. } = &row;
        let (x, loss) = (metrics.step as f64, metrics.loss);
        self.first.get_or_insert((metrics.step, elapsed));
        if loss.is_finite() {
            let mean = self.mean.map_or(loss, |mean| KEEP * mean + (1.0 - KEEP) * loss);
            self.mean = Some(mean);
            self.means.push((x, mean));
        }
        self.rates.push((x, metrics.learning_rate));
        self.speeds.push((x, *tokens_per_s));
        self.last = Some(row);
    }

    /// Adds an evaluation.
    pub(crate) fn add_evaluation(&mut self, step: u64, loss: f64) {
        if loss.is_finite() {
            self.evals.push((step as f64, loss));
        }
    }

    /// Adds lines to the log.
    pub(crate) fn log(&mut self, text: &str) {
        // Control characters would move the terminal's cursor.
        let clean =
            |line: &str| line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        self.lines.extend(text.lines().map(clean));
        let surplus = self.lines.len().saturating_sub(LINES);
        self.lines.drain(..surplus);
    }

    /// Shows that the run is stopping.
    pub(crate) fn set_stopping(&mut self) {
        self.is_stopping = true;
    }

    /// Estimated time left, if two steps are known.
    fn left(&self, elapsed: Duration) -> Option<Duration> {
        let ((first, since), last) = (self.first?, self.last.as_ref()?.metrics.step);
        let made = last.checked_sub(first).filter(|made| *made > 0)?;
        let left = self.steps.saturating_sub(last);
        Some((elapsed.saturating_sub(since)).mul_f64(left as f64 / made as f64))
    }

    /// Draws everything. `elapsed`: time since the start.
    pub(crate) fn draw(&self, frame: &mut Frame<'_>, elapsed: Duration) {
        let log_height = if frame.area().height >= 30 { 10 } else { 6 };
        let [top, main, progress, log, foot] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Min(6),
            Constraint::Length(1),
            Constraint::Length(log_height),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        let [left, right] =
            Layout::horizontal([Constraint::Percentage(62), Constraint::Percentage(38)])
                .areas(main);
        let [figures, rates, speeds] =
            Layout::vertical([Constraint::Length(7), Constraint::Fill(1), Constraint::Fill(1)])
                .areas(right);
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let title = Line::from(vec![
            Span::styled(" emberlm ", bold.fg(Color::Black).bg(Color::Yellow)),
            Span::styled(format!(" {}", self.title), bold),
        ]);
        frame.render_widget(title, top);
        self.draw_loss(frame, left);
        self.draw_figures(frame, figures);
        draw_curve(frame, rates, "learning rate", &self.rates, Color::Magenta, short);
        draw_curve(frame, speeds, "tokens/s", &self.speeds, Color::Green, |x| format!("{x:.0}"));
        self.draw_progress(frame, progress, elapsed);
        self.draw_log(frame, log);
        let keys = if self.is_stopping {
            Span::styled(
                " stopping after this step, then saving · q or Ctrl-C again: quit immediately",
                bold.fg(Color::Yellow),
            )
        } else {
            Span::styled(
                " q or Ctrl-C: stop after this step and save",
                Style::new().fg(Color::DarkGray),
            )
        };
        frame.render_widget(Line::from(keys), foot);
    }

    fn draw_loss(&self, frame: &mut Frame<'_>, area: Rect) {
        let means = sampled(&self.means);
        let evals = sampled(&self.evals);
        let mut curves = vec![curve("training", &means, Color::Cyan, GraphType::Line)];
        if !evals.is_empty() {
            curves.push(curve("evaluation", &evals, Color::LightRed, GraphType::Line));
        }
        let values = means.iter().chain(&evals);
        let end = self.steps as f64;
        frame.render_widget(chart("loss", curves, values, Some(end), |x| format!("{x:.3}")), area);
    }

    fn draw_figures(&self, frame: &mut Frame<'_>, area: Rect) {
        let last = self.last.as_ref();
        let number = |value: Option<String>| value.unwrap_or_else(|| "–".to_owned());
        let rows = [
            ("loss", number(last.map(|row| format!("{:.4}", row.metrics.loss)))),
            ("evaluation", number(self.evals.last().map(|(_, loss)| format!("{loss:.4}")))),
            ("grad norm", number(last.map(|row| format!("{:.3}", row.metrics.grad_norm)))),
            ("epoch", number(last.map(|row| format!("{:.2}", row.metrics.epoch)))),
            (
                "memory",
                number(
                    last.and_then(|row| row.peak_memory_mib).map(|mib| Size(mib << 20).to_string()),
                ),
            ),
        ];
        let line = |(name, value): (&str, String)| {
            Line::from(vec![
                Span::styled(format!("{name:<12}"), Style::new().fg(Color::DarkGray)),
                Span::styled(value, Style::new().add_modifier(Modifier::BOLD)),
            ])
        };
        let text: Vec<Line<'_>> = rows.map(line).to_vec();
        frame.render_widget(
            Paragraph::new(text).block(block("now").padding(Padding::horizontal(1))),
            area,
        );
    }

    fn draw_progress(&self, frame: &mut Frame<'_>, area: Rect, elapsed: Duration) {
        let step = self.last.as_ref().map_or(0, |row| row.metrics.step);
        let share = if self.steps == 0 { 0.0 } else { step as f64 / self.steps as f64 };
        let left = match self.left(elapsed) {
            Some(left) => format!("{} left", FormattedDuration(left)),
            None => "…".to_owned(),
        };
        let label = format!(
            "{step} / {} steps · {} elapsed · {left}",
            self.steps,
            FormattedDuration(elapsed)
        );
        let gauge = Gauge::default()
            .ratio(share.clamp(0.0, 1.0))
            .label(label)
            .gauge_style(Style::new().fg(Color::Blue).bg(Color::Black))
            .use_unicode(true);
        frame.render_widget(gauge, area);
    }

    fn draw_log(&self, frame: &mut Frame<'_>, area: Rect) {
        let shown = area.height.saturating_sub(2) as usize;
        let lines = self.lines.iter().skip(self.lines.len().saturating_sub(shown));
        let text: Vec<Line<'_>> = lines.map(|line| Line::from(line.as_str())).collect();
        frame.render_widget(Paragraph::new(text).block(block("log")), area);
    }
}

fn block(title: &str) -> Block<'_> {
    Block::bordered()
        .border_type(BorderType::Rounded)
        .border_style(Style::new().fg(Color::DarkGray))
        .title(Span::styled(format!(" {title} "), Style::new().add_modifier(Modifier::BOLD)))
}

fn curve<'a>(
    name: &'a str,
    points: &'a [(f64, f64)],
    colour: Color,
    kind: GraphType,
) -> Dataset<'a> {
    Dataset::default()
        .name(name)
        .marker(Marker::Braille)
        .graph_type(kind)
        .style(Style::new().fg(colour))
        .data(points)
}

fn draw_curve(
    frame: &mut Frame<'_>,
    area: Rect,
    title: &str,
    points: &[(f64, f64)],
    colour: Color,
    label: fn(f64) -> String,
) {
    let points = sampled(points);
    let curves = vec![curve("", &points, colour, GraphType::Line)];
    frame.render_widget(chart(title, curves, points.iter(), None, label), area);
}

fn chart<'a>(
    title: &'a str,
    curves: Vec<Dataset<'a>>,
    values: impl Iterator<Item = &'a (f64, f64)>,
    end: Option<f64>,
    label: fn(f64) -> String,
) -> Chart<'a> {
    let mut x = [f64::INFINITY, f64::NEG_INFINITY];
    let mut y = x;
    for (at, value) in values {
        x = [x[0].min(*at), x[1].max(*at)];
        y = [y[0].min(*value), y[1].max(*value)];
    }
    if x[0] > x[1] {
        return Chart::new(Vec::new()).block(block(title));
    }
    x[1] = x[1].max(end.unwrap_or(x[1]));
    let is_flat = y[1] - y[0] <= 1e-12 * y[1].abs();
    let margin = if is_flat { y[0].abs().max(1.0) / 10.0 } else { 0.05 * (y[1] - y[0]) };
    let y = [y[0] - margin, y[1] + margin];
    let soft = Style::new().fg(Color::DarkGray);
    let labels = [y[0], (y[0] + y[1]) / 2.0, y[1]].map(label);
    let steps = [format!("{:.0}", x[0]), format!("{:.0}", x[1])];
    Chart::new(curves)
        .block(block(title))
        .x_axis(Axis::default().bounds(x).labels(steps).style(soft))
        .y_axis(
            Axis::default().bounds(y).labels(labels).style(soft).labels_alignment(Alignment::Right),
        )
}

/// At most [`POINTS`] of the points, evenly spaced, always with the last one.
fn sampled(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let every = points.len().div_ceil(POINTS).max(1);
    let skip = points.len().saturating_sub(1) % every;
    points.iter().skip(skip).step_by(every).copied().collect()
}

fn short(rate: f64) -> String {
    format!("{rate:.1e}")
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::trainer::metrics::StepMetrics;

    fn row(step: u64) -> StepRow {
        let x = step as f64 / 100.0;
        let metrics = StepMetrics {
            step,
            epoch: x,
            loss: 1.0 + 2.0 * (-3.0 * x).exp(),
            grad_norm: 0.5,
            learning_rate: 2e-4 * (1.0 - x),
            ..StepMetrics::default()
        };
        StepRow { metrics, tokens_per_s: 430.0, peak_memory_mib: Some(2560) }
    }

    fn drawn(board: &Dashboard, [width, height]: [u16; 2], elapsed: u64) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| board.draw(frame, Duration::from_secs(elapsed))).unwrap();
        let buffer = terminal.backend().buffer();
        let row = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect();
        (0..height).map(row).collect()
    }

    fn half_way() -> Dashboard {
        let mut board = Dashboard::new("runs/first".to_owned());
        board.set_steps(100);
        board.log("data      100 examples");
        board.add_evaluation(0, 3.0);
        for step in 1..=50 {
            board.add_step(row(step), Duration::from_secs(10 + step));
        }
        board.add_evaluation(50, 1.625);
        board
    }

    #[test]
    fn the_dashboard_shows_the_run() {
        let rows = drawn(&half_way(), [110, 32], 60);
        let all = rows.join("\n");
        for text in [
            "runs/first",
            "50 / 100 steps · 00:01:00 elapsed · 00:00:50 left",
            "loss        1.4463",
            "evaluation  1.6250",
            "grad norm   0.500",
            "epoch       0.50",
            "memory      2.50 GiB",
            "learning rate",
            "tokens/s",
            "data      100 examples",
            "q or Ctrl-C: stop after this step and save",
        ] {
            assert!(all.contains(text), "no {text:?} in\n{all}");
        }
        // The curve falls: its dots are higher on the left than on the right.
        let is_dot = |c: &char| ('\u{2801}'..='\u{28ff}').contains(c);
        let place =
            |x: usize| rows.iter().position(|row| row.chars().skip(x).take(3).any(|c| is_dot(&c)));
        assert!(place(10) < place(35), "{all}");
    }

    #[test]
    fn a_requested_stop_is_shown() {
        let mut board = half_way();
        board.set_stopping();
        let all = drawn(&board, [100, 24], 60).join("\n");
        assert!(all.contains("stopping after this step, then saving"), "{all}");
    }

    #[test]
    fn an_empty_run_and_a_tiny_terminal_are_drawn() {
        let mut odd = half_way();
        let mut broken = row(51);
        broken.metrics.loss = f64::NAN;
        odd.add_step(broken, Duration::ZERO);
        odd.log("\u{1b}[2Jgone\ttab\u{7}");
        for size in [[1, 1], [20, 5], [40, 12], [300, 90]] {
            drawn(&Dashboard::default(), size, 0);
            let all = drawn(&odd, size, 3).join("");
            assert!(!all.contains(['\u{1b}', '\u{7}', '\t']), "no control character is drawn");
        }
    }

    #[test]
    fn the_time_left_is_estimated_from_the_steps_since_a_resume() {
        let mut board = Dashboard::new(String::new());
        board.set_steps(100);
        board.add_step(row(90), Duration::from_secs(5));
        assert_eq!(board.left(Duration::from_secs(5)), None);
        board.add_step(row(92), Duration::from_secs(9));
        assert_eq!(board.left(Duration::from_secs(9)), Some(Duration::from_secs(16)));
    }

    #[test]
    fn long_curves_are_thinned() {
        let points: Vec<_> = (0..100_003).map(|x| (f64::from(x), 0.0)).collect();
        let some = sampled(&points);
        assert!(some.len() <= POINTS && some.last() == points.last());
        assert_eq!(sampled(&points[..399]).len(), 399);
        assert!(sampled(&[]).is_empty());
    }
}
