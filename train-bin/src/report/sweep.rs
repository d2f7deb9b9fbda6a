//! The report on a learning-rate range test.

use minijinja::context;

use super::chart::{Chart, Curve, LineStyle, Titles};
use super::error::ReportError;
use super::scale::{self, Spacing, number};
use super::summary::Figure;
use super::templates::environment;
use crate::run::lr_find::{Sweep, SweepStep};

/// The page as the text of an HTML file. `name`: the name of the run.
///
/// # Errors
/// [`ReportError::Page`].
pub fn sweep_page(name: &str, sweep: &Sweep) -> Result<String, ReportError> {
    let points = |value: fn(&SweepStep) -> f64| {
        sweep.tried.iter().map(|tried| (tried.rate, value(tried))).collect::<Vec<_>>()
    };
    let curve = |label: &str, line_style, value| Curve {
        label: label.to_owned(),
        style: 0,
        points: points(value),
        line_style,
    };
    let curves = [
        curve("each step", LineStyle::Faint, |tried| tried.loss),
        curve("running mean", LineStyle::Plain, |tried| tried.mean),
    ];
    let titles = Titles {
        id: "sweep",
        title: "Loss by learning rate",
        unit: "nats per token",
        x: "learning rate",
        spacing: Spacing::Log,
        may_be_log: true,
        is_wide: true,
    };
    let mut chart = Chart::of(&titles, &curves);
    if let Some(chart) = &mut chart {
        let marks = [("proposal", sweep.proposal), ("minimum", sweep.least_at)];
        for (what, rate) in marks {
            if let Some(rate) = rate {
                chart.mark(rate, format!("{what} {}", scale::rate(rate)));
            }
        }
    }
    let figure = |name, value: Option<f64>, note: &str| Figure {
        name,
        value: value.map_or_else(|| "–".to_owned(), scale::rate),
        note: note.to_owned(),
    };
    let figures = [
        figure("Proposed learning rate", sweep.proposal, "a tenth of the rate of the lowest loss"),
        figure("Lowest loss at", sweep.least_at, "of the running mean"),
        figure("Steepest descent at", sweep.steepest_at, "of the running mean"),
    ];
    let end = if sweep.diverged {
        "stopped because the loss rose too far"
    } else {
        "ran to its last rate"
    };
    Ok(environment()?.get_template("sweep.html")?.render(context! {
        name,
        figures,
        chart,
        remark => sweep.remark,
        steps => sweep.tried.len(),
        end,
        tried => sweep.tried.iter().map(|t| [scale::rate(t.rate), number(t.loss), number(t.mean)]).collect::<Vec<_>>(),
    })?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_marks_the_proposal() {
        let tried = (0..60)
            .map(|n| {
                let rate = 1e-6 * 10f64.powf(f64::from(n) / 10.0);
                SweepStep { rate, loss: 3.0 - rate.log10() / 10.0, mean: 3.0 }
            })
            .collect();
        let sweep = Sweep {
            tried,
            diverged: true,
            least_at: Some(2e-2),
            steepest_at: Some(1e-3),
            proposal: Some(2e-3),
            remark: "remark",
        };
        let page = sweep_page("<b>run.toml", &sweep).unwrap();
        for text in [
            "proposal 2e-3",
            "minimum 2e-2",
            "learning rate",
            "1e-6",
            "Remark",
            "&lt;b&gt;run.toml",
        ] {
            assert!(page.contains(text), "no {text:?}");
        }
        assert!(!page.contains("<b>run") && !page.contains("NaN"));
        let none = Sweep { tried: Vec::new(), proposal: None, least_at: None, ..sweep };
        assert!(!sweep_page("x", &none).unwrap().contains("<figure"));
    }
}
