//! What the dashboard shows, and how it is drawn. It knows of no terminal and no clock.

use std::collections::VecDeque;
use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{
    Axis, Block, BorderType, Chart, Dataset, Gauge, GraphType, Padding, Paragraph,
};

/// Lines that are kept of what was said.
const LINES: usize = 200;

/// Points of a curve that are drawn, at most: a terminal has no more columns.
const POINTS: usize = 400;

/// Weight of what was in the running mean of the loss.
const KEEP: f64 = 0.9;

/// All that is shown of a run.
#[derive(Debug, Default)]
pub(crate) struct Dashboard {
    title: String,
    steps: u64,
    last: Option<Made>,
    /// Steps made, and time gone, when the first step of this part was seen.
    first: Option<(u64, Duration)>,
    mean: Option<f64>,
    means: Vec<(f64, f64)>,
    evals: Vec<(f64, f64)>,
    rates: Vec<(f64, f64)>,
    speeds: Vec<(f64, f64)>,
    lines: VecDeque<String>,
    is_stopping: bool,
}

/// A step that was made.
#[derive(Debug, Clone, Default)]
pub(crate) struct Made {
    pub(crate) step: u64,
    pub(crate) epoch: f64,
    pub(crate) loss: f64,
    pub(crate) grad_norm: f64,
    pub(crate) rate: f64,
    pub(crate) tokens_per_s: f64,
    /// In words.
    pub(crate) memory: Option<String>,
}

impl Dashboard {
    pub(crate) fn new(title: String) -> Self {
        Self { title, ..Self::default() }
    }

    /// The run will make so many steps in all.
    pub(crate) fn will_make(&mut self, steps: u64) {
        self.steps = steps;
    }

    /// A step was made, so long after the beginning.
    pub(crate) fn step(&mut self, made: Made, gone: Duration) {
        let x = made.step as f64;
        self.first.get_or_insert((made.step, gone));
        if made.loss.is_finite() {
            let mean = self.mean.map_or(made.loss, |mean| KEEP * mean + (1.0 - KEEP) * made.loss);
            self.mean = Some(mean);
            self.means.push((x, mean));
        }
        self.rates.push((x, made.rate));
        self.speeds.push((x, made.tokens_per_s));
        self.last = Some(made);
    }

    /// An evaluation was made.
    pub(crate) fn evaluated(&mut self, step: u64, loss: f64) {
        if loss.is_finite() {
            self.evals.push((step as f64, loss));
        }
    }

    /// Something was said.
    pub(crate) fn say(&mut self, text: &str) {
        // A control character would move the terminal's cursor.
        let clean =
            |line: &str| line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        self.lines.extend(text.lines().map(clean));
        let surplus = self.lines.len().saturating_sub(LINES);
        self.lines.drain(..surplus);
    }

    /// The run was asked to stop.
    pub(crate) fn stopping(&mut self) {
        self.is_stopping = true;
    }

    /// Time that is left, if it can be told.
    fn left(&self, gone: Duration) -> Option<Duration> {
        let ((first, since), last) = (self.first?, self.last.as_ref()?);
        let made = last.step.checked_sub(first).filter(|made| *made > 0)?;
        let left = self.steps.saturating_sub(last.step);
        Some((gone.saturating_sub(since)).mul_f64(left as f64 / made as f64))
    }

    /// Draws all of it, so long after the beginning.
    pub(crate) fn draw(&self, frame: &mut Frame<'_>, gone: Duration) {
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
        self.draw_progress(frame, progress, gone);
        self.draw_log(frame, log);
        let keys = if self.is_stopping {
            Span::styled(
                " stopping after this step, then saving · q or Ctrl-C once more: stop at once",
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
            ("loss", number(last.map(|made| format!("{:.4}", made.loss)))),
            ("evaluation", number(self.evals.last().map(|(_, loss)| format!("{loss:.4}")))),
            ("grad norm", number(last.map(|made| format!("{:.3}", made.grad_norm)))),
            ("epoch", number(last.map(|made| format!("{:.2}", made.epoch)))),
            ("memory", number(last.and_then(|made| made.memory.clone()))),
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

    fn draw_progress(&self, frame: &mut Frame<'_>, area: Rect, gone: Duration) {
        let step = self.last.as_ref().map_or(0, |made| made.step);
        let share = if self.steps == 0 { 0.0 } else { step as f64 / self.steps as f64 };
        let left = match self.left(gone) {
            Some(left) => format!("{} left", clock(left)),
            None => "…".to_owned(),
        };
        let label = format!("{step} / {} steps · {} gone · {left}", self.steps, clock(gone));
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
    say: fn(f64) -> String,
) {
    let points = sampled(points);
    let curves = vec![curve("", &points, colour, GraphType::Line)];
    frame.render_widget(chart(title, curves, points.iter(), None, say), area);
}

fn chart<'a>(
    title: &'a str,
    curves: Vec<Dataset<'a>>,
    values: impl Iterator<Item = &'a (f64, f64)>,
    end: Option<f64>,
    say: fn(f64) -> String,
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
    let labels = [y[0], (y[0] + y[1]) / 2.0, y[1]].map(say);
    let steps = [format!("{:.0}", x[0]), format!("{:.0}", x[1])];
    Chart::new(curves)
        .block(block(title))
        .x_axis(Axis::default().bounds(x).labels(steps).style(soft))
        .y_axis(
            Axis::default().bounds(y).labels(labels).style(soft).labels_alignment(Alignment::Right),
        )
}

/// At most [`POINTS`] of the points, evenly; the last one always.
fn sampled(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let every = points.len().div_ceil(POINTS).max(1);
    let skip = points.len().saturating_sub(1) % every;
    points.iter().skip(skip).step_by(every).copied().collect()
}

fn short(rate: f64) -> String {
    format!("{rate:.1e}")
}

/// `1:02:03` or `02:03`.
fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 {
        format!("{hours}:{minutes:02}:{seconds:02}")
    } else {
        format!("{minutes:02}:{seconds:02}")
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    fn made(step: u64) -> Made {
        let x = step as f64 / 100.0;
        Made {
            step,
            epoch: x,
            loss: 1.0 + 2.0 * (-3.0 * x).exp(),
            grad_norm: 0.5,
            rate: 2e-4 * (1.0 - x),
            tokens_per_s: 430.0,
            memory: Some("2.4 GiB".to_owned()),
        }
    }

    fn drawn(board: &Dashboard, [width, height]: [u16; 2], gone: u64) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| board.draw(frame, Duration::from_secs(gone))).unwrap();
        let buffer = terminal.backend().buffer();
        let row = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect();
        (0..height).map(row).collect()
    }

    fn half_way() -> Dashboard {
        let mut board = Dashboard::new("runs/first".to_owned());
        board.will_make(100);
        board.say("data      100 examples");
        board.evaluated(0, 3.0);
        for step in 1..=50 {
            board.step(made(step), Duration::from_secs(10 + step));
        }
        board.evaluated(50, 1.625);
        board
    }

    #[test]
    fn the_board_says_what_the_run_does() {
        let rows = drawn(&half_way(), [110, 32], 60);
        let all = rows.join("\n");
        for text in [
            "runs/first",
            "50 / 100 steps · 01:00 gone · 00:50 left",
            "loss        1.4463",
            "evaluation  1.6250",
            "grad norm   0.500",
            "epoch       0.50",
            "memory      2.4 GiB",
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
    fn a_stop_is_shown_until_it_comes() {
        let mut board = half_way();
        board.stopping();
        let all = drawn(&board, [100, 24], 60).join("\n");
        assert!(all.contains("stopping after this step, then saving"), "{all}");
    }

    #[test]
    fn nothing_known_and_no_room_are_drawn_too() {
        let mut odd = half_way();
        odd.step(Made { loss: f64::NAN, step: 51, ..made(51) }, Duration::ZERO);
        odd.say("\u{1b}[2Jgone\ttab\u{7}");
        for size in [[1, 1], [20, 5], [40, 12], [300, 90]] {
            drawn(&Dashboard::default(), size, 0);
            let all = drawn(&odd, size, 3).join("");
            assert!(!all.contains(['\u{1b}', '\u{7}', '\t']), "no control character goes through");
        }
    }

    #[test]
    fn time_left_is_that_of_this_part() {
        let mut board = Dashboard::new(String::new());
        board.will_make(100);
        board.step(made(90), Duration::from_secs(5));
        assert_eq!(board.left(Duration::from_secs(5)), None);
        board.step(made(92), Duration::from_secs(9));
        assert_eq!(board.left(Duration::from_secs(9)), Some(Duration::from_secs(16)));
    }

    #[test]
    fn long_runs_are_drawn_by_some_of_their_points() {
        let points: Vec<_> = (0..100_003).map(|x| (f64::from(x), 0.0)).collect();
        let some = sampled(&points);
        assert!(some.len() <= POINTS && some.last() == points.last());
        assert_eq!(sampled(&points[..399]).len(), 399);
        assert!(sampled(&[]).is_empty());
    }
}
