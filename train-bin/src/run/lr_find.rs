//! Looking for a learning rate: a short run whose rate rises by equal factors, and what its losses say (Smith 2015,
//! "Cyclical Learning Rates for Training Neural Networks").

use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;

use crate::base::Base;
use crate::config::RunConfig;
use crate::run::prepare::{Data, open_base, plan};
use crate::run::trainable;
use crate::run::{RunError, pad_id};
use crate::trainer::backend::{Job, resolve, run_on};
use crate::trainer::check::TrainError;
use crate::trainer::schedule::{Curve, LearningRate, Warmup};
use crate::trainer::step::TrainBackend;
use crate::trainer::train::{Flow, Plan, train};

/// Weight of what was in the running mean of the losses.
const KEEP: f64 = 0.9;

/// The sweep is over when the mean is so many times the least one.
const DIVERGED: f64 = 4.0;

/// Or when it fell by this share of what it was at first …
const FELL: f64 = 0.2;

/// … and gave back this share of that. Models with norms don't come to 4 times the least loss: theirs levels off.
const GIVEN_BACK: f64 = 0.5;

/// Steps after which the mean counts as what it was at first.
const FIRST: usize = 10;

/// The proposal is the rate of the least mean divided by this.
const BELOW_LEAST: f64 = 10.0;

/// Points to each side that a slope is measured over.
const REACH: usize = 3;

/// The least share by which the mean must fall for the sweep to say anything.
const FALL: f64 = 0.02;

/// The rates of a sweep.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Range {
    /// The first rate.
    pub from: f64,
    /// The last one, greater than the first.
    pub to: f64,
    /// Steps, from one to the other by equal factors; 2 or more.
    pub steps: u64,
}

/// A step of a sweep.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Tried {
    /// Its rate.
    pub rate: f64,
    /// The loss before it, in nats a token.
    pub loss: f64,
    /// The running mean of the losses up to here.
    pub mean: f64,
}

/// What a sweep found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sweep {
    /// The steps that were made.
    pub tried: Vec<Tried>,
    /// Whether it ended because the loss rose too far, or was no number.
    pub diverged: bool,
    /// The rate at which the mean was least.
    pub least_at: Option<f64>,
    /// The rate at which the mean fell fastest, by the rate's logarithm.
    pub steepest_at: Option<f64>,
    /// The proposal, and by what rule; `None` if the loss never fell.
    pub proposal: Option<f64>,
    /// What is to be said of the proposal, or why there is none.
    pub remark: &'static str,
}

/// Sweeps the learning rate on a run's configuration: its model, data, batches, optimizer and seed. Nothing is saved.
/// `on_step` hears each step.
///
/// # Errors
/// As [`run`](crate::run()); a loss that isn't finite is no error here, but the end of the sweep.
pub fn lr_find(
    config: &RunConfig,
    range: Range,
    interrupt: &AtomicBool,
    on_step: &mut dyn FnMut(&Tried),
) -> Result<Sweep, RunError> {
    let base = open_base(config)?;
    let data = Data::read(config, &base.tokenizer, &mut |_| ())?;
    let plan = sweeping(plan(config, &data.train)?, range);
    let (base, data, plan) = (&base, &data, &plan);
    let job = SweepJob { config, base, data, plan, interrupt, on_step };
    run_on(resolve(config.model.backend), job)?
}

/// The plan of a run with so many steps, each of a higher rate.
fn sweeping(plan: Plan, range: Range) -> Plan {
    let Range { from, to, steps } = range;
    let rows = steps * plan.rows_per_step();
    // The last step, not the one after it, has the last rate.
    let learning_rate = LearningRate {
        curve: Curve::Exponential,
        peak: from,
        floor: to,
        warmup: Warmup::Steps(0),
        steps: steps.saturating_sub(1),
    };
    Plan { steps, rows, learning_rate, ..plan }
}

struct SweepJob<'a, 'o> {
    config: &'a RunConfig,
    base: &'a Base,
    data: &'a Data,
    plan: &'a Plan,
    interrupt: &'a AtomicBool,
    on_step: &'a mut (dyn FnMut(&Tried) + 'o),
}

impl Job for SweepJob<'_, '_> {
    type Output = Result<Sweep, RunError>;

    fn run<A: TrainBackend>(self, device: A::Device) -> Self::Output {
        let Self { config, base, data, plan, interrupt, on_step } = self;
        let (model, _) = trainable::<A>(config, base, None, &device)?;
        let mut losses = Losses::default();
        let pad_id = pad_id(&base.tokenizer);
        let trained = train(model, &base.config, &data.train, pad_id, plan, |log, _| {
            let goes_on = losses.take(log.learning_rate, log.loss);
            if let Some(last) = losses.tried.last() {
                on_step(last);
            }
            let goes_on = goes_on && !interrupt.load(Ordering::Relaxed);
            Ok::<_, TrainError>(if goes_on { Flow::Continue } else { Flow::Stop })
        });
        match trained {
            Ok(_) => {}
            // What a rate that is too high comes to.
            Err(TrainError::Loss { .. } | TrainError::Gradient { .. }) => losses.diverged = true,
            Err(error) => return Err(error.into()),
        }
        Ok(losses.judged())
    }
}

/// The losses of a sweep as they come.
#[derive(Debug, Default)]
struct Losses {
    tried: Vec<Tried>,
    sum: f64,
    weight: f64,
    diverged: bool,
}

impl Losses {
    /// Whether the sweep goes on after this one.
    fn take(&mut self, rate: f64, loss: f64) -> bool {
        if !loss.is_finite() {
            self.diverged = true;
            return false;
        }
        self.sum = KEEP * self.sum + (1.0 - KEEP) * loss;
        self.weight = KEEP * self.weight + (1.0 - KEEP);
        let mean = self.sum / self.weight;
        self.tried.push(Tried { rate, loss, mean });
        let least = self.tried.iter().fold(f64::INFINITY, |least, tried| least.min(tried.mean));
        let gave_back = self.tried.get(FIRST - 1).is_some_and(|first| {
            let fell = first.mean - least;
            fell > FELL * first.mean && mean > least + GIVEN_BACK * fell
        });
        self.diverged = gave_back || mean > DIVERGED * least;
        !self.diverged
    }

    fn judged(self) -> Sweep {
        let Self { tried, diverged, .. } = self;
        let least = (0..tried.len()).min_by(|a, b| tried[*a].mean.total_cmp(&tried[*b].mean));
        let fell = least.is_some_and(|least| tried[least].mean < (1.0 - FALL) * tried[0].mean);
        let mut sweep = Sweep {
            tried,
            diverged,
            least_at: None,
            steepest_at: None,
            proposal: None,
            remark: "the loss did not fall at any rate of the sweep: take more steps, or begin lower",
        };
        let Some(least) = least.filter(|_| fell) else { return sweep };
        let tried = &sweep.tried;
        let least_at = tried[least].rate;
        sweep.least_at = Some(least_at);
        sweep.steepest_at = steepest(&tried[..=least]);
        sweep.proposal = Some(least_at / BELOW_LEAST);
        sweep.remark = if least + 1 == tried.len() {
            "the loss was still falling at the end of the sweep: a higher end may find a higher rate"
        } else {
            "a tenth of the rate at which the running mean of the loss was least: there it is about to rise"
        };
        sweep
    }
}

/// The rate at which the mean falls fastest by the rate's logarithm, measured over [`REACH`] steps to each side; `None` if
/// there are too few. The first steps, of which the mean is of few losses, don't count.
fn steepest(tried: &[Tried]) -> Option<f64> {
    let slope = |at: usize| {
        let (before, after) = (&tried[at - REACH], &tried[at + REACH]);
        (after.mean - before.mean) / (after.rate / before.rate).ln()
    };
    let places = 2 * REACH..tried.len().saturating_sub(REACH);
    let fastest = places.min_by(|a, b| slope(*a).total_cmp(&slope(*b)))?;
    (slope(fastest) < 0.0).then_some(tried[fastest].rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(range: Range) -> Vec<f64> {
        let plan = sweeping(Plan::new(1, 4, 1.0), range);
        assert_eq!((plan.steps, plan.rows), (range.steps, 4 * range.steps));
        (0..range.steps).map(|step| plan.learning_rate.at(step)).collect()
    }

    fn judged(losses: impl Fn(f64) -> f64) -> Sweep {
        let mut taken = Losses::default();
        for rate in rates(Range { from: 1e-6, to: 1.0, steps: 121 }) {
            if !taken.take(rate, losses(rate)) {
                break;
            }
        }
        taken.judged()
    }

    #[test]
    fn rates_rise_by_equal_factors_from_end_to_end() {
        let rates = rates(Range { from: 1e-6, to: 1.0, steps: 7 });
        for (power, rate) in rates.iter().enumerate() {
            let expected = 10f64.powi(power as i32 - 6);
            assert!((rate / expected - 1.0).abs() < 1e-12, "{rate} not {expected}");
        }
    }

    #[test]
    fn the_proposal_lies_a_decade_below_the_least_mean() {
        // Falls from 3 to 1 around 1e-4, and rises steeply from 1e-2 on.
        let loss = |rate: f64| 3.0 - 2.0 / (1.0 + 1e-4 / rate) + (rate / 1e-2).powi(2);
        let sweep = judged(loss);
        assert!(
            sweep.diverged && sweep.tried.len() < 121,
            "it ends where the loss is 4 times the least"
        );
        let least = sweep.least_at.unwrap();
        assert!((1e-3..2e-2).contains(&least), "{least}");
        assert!((sweep.proposal.unwrap() * 10.0 / least - 1.0).abs() < 1e-12);
        let steepest = sweep.steepest_at.unwrap();
        // The mean follows the loss some steps later.
        assert!((5e-5..1e-3).contains(&steepest), "{steepest}");
    }

    #[test]
    fn a_loss_that_levels_off_above_ends_the_sweep_too() {
        // Falls from 6 to 4 around 1e-3 and comes back to 6 at 1e-2, as a model with norms does.
        let loss =
            |rate: f64| 6.0 - 2.0 / (1.0 + 1e-3 / rate) + 2.0 / (1.0 + (1e-2 / rate).powi(4));
        let sweep = judged(loss);
        assert!(sweep.diverged && sweep.tried.len() < 121);
        let last = sweep.tried.last().unwrap();
        assert!(last.mean < 6.0 && last.rate > 1e-2, "{last:?}");
        assert!((1e-3..2e-2).contains(&sweep.least_at.unwrap()), "{sweep:?}");
    }

    #[test]
    fn a_loss_that_never_falls_proposes_nothing() {
        for sweep in [judged(|_| 2.0), judged(|rate| 2.0 + 50.0 * rate), judged(|_| f64::NAN)] {
            assert_eq!((sweep.proposal, sweep.least_at), (None, None));
            assert!(sweep.remark.contains("did not fall"));
        }
        assert!(judged(|_| f64::NAN).diverged);
    }

    #[test]
    fn a_sweep_that_ends_too_early_says_so() {
        let sweep = judged(|rate| 3.0 - rate.log10() / 10.0);
        assert!(!sweep.diverged);
        assert_eq!(sweep.tried.len(), 121);
        assert!(sweep.remark.contains("still falling"), "{}", sweep.remark);
    }

    #[test]
    fn the_mean_of_one_is_itself() {
        let mut losses = Losses::default();
        losses.take(1e-4, 7.5);
        assert!((losses.tried[0].mean - 7.5).abs() < 1e-12);
    }
}
