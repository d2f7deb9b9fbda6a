//! A page about a sweep of the learning rate.

use minijinja::context;

use super::chart::{Chart, Curve, Look, Titles};
use super::scale::{self, Spacing, number};
use super::summary::Figure;
use super::{ReportError, environment};
use crate::run::lr_find::{Sweep, Tried};

/// The page, as the text of an HTML file. `name`: what was swept.
///
/// # Errors
/// [`ReportError::Page`].
pub fn sweep_page(name: &str, sweep: &Sweep) -> Result<String, ReportError> {
    let points = |value: fn(&Tried) -> f64| {
        sweep.tried.iter().map(|tried| (tried.rate, value(tried))).collect::<Vec<_>>()
    };
    let curve = |label: &str, look, value| Curve {
        label: label.to_owned(),
        style: 0,
        points: points(value),
        look,
    };
    let curves = [
        curve("each step", Look::Faint, |tried| tried.loss),
        curve("running mean", Look::Plain, |tried| tried.mean),
    ];
    let titles = Titles {
        id: "sweep",
        title: "Loss by learning rate",
        unit: "nats a token",
        x: "learning rate",
        spacing: Spacing::Log,
        may_be_log: true,
        is_wide: true,
    };
    let mut chart = Chart::of(&titles, &curves);
    if let Some(chart) = &mut chart {
        let marks = [("proposal", sweep.proposal), ("least", sweep.least_at)];
        for (what, rate) in marks {
            if let Some(rate) = rate {
                chart.mark(rate, format!("{what} {}", scale::rate(rate)));
            }
        }
    }
    let figure = |name, value: Option<f64>, beside: &str| Figure {
        name,
        value: value.map_or_else(|| "–".to_owned(), scale::rate),
        beside: beside.to_owned(),
    };
    let figures = [
        figure("Proposed rate", sweep.proposal, "a tenth of that of the least loss"),
        figure("Least loss at", sweep.least_at, "of the running mean"),
        figure("Steepest fall at", sweep.steepest_at, "of the running mean"),
    ];
    let end = if sweep.diverged { "ended as the loss rose too far" } else { "went to its end" };
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
    fn the_page_marks_what_is_proposed() {
        let tried = (0..60)
            .map(|n| {
                let rate = 1e-6 * 10f64.powf(f64::from(n) / 10.0);
                Tried { rate, loss: 3.0 - rate.log10() / 10.0, mean: 3.0 }
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
        for text in
            ["proposal 2e-3", "least 2e-2", "learning rate", "1e-6", "Remark", "&lt;b&gt;run.toml"]
        {
            assert!(page.contains(text), "no {text:?}");
        }
        assert!(!page.contains("<b>run") && !page.contains("NaN"));
        let none = Sweep { tried: Vec::new(), proposal: None, least_at: None, ..sweep };
        assert!(!sweep_page("x", &none).unwrap().contains("<figure"));
    }
}
