//! Learning-rate range test: a short run whose rate rises by equal factors, and a proposal from its losses (Smith 2015,
//! "Cyclical Learning Rates for Training Neural Networks").

use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;

use crate::base::Base;
use crate::config::RunConfig;
use crate::run::error::RunError;
use crate::run::prepare::{Data, open_base, pad_id, plan, trainable};
use crate::trainer::backend::{Job, resolve, run_on};
use crate::trainer::error::TrainError;
use crate::trainer::plan::Plan;
use crate::trainer::schedule::{Curve, LearningRate, Warmup};
use crate::trainer::step::TrainBackend;
use crate::trainer::train::{Flow, train};

/// Weight of earlier losses in the running mean.
const KEEP: f64 = 0.9;

/// The test ends when the mean exceeds its minimum by this factor,
const DIVERGED: f64 = 4.0;

/// or when it fell by this share of its initial value …
const FELL: f64 = 0.2;

/// … and then rose by this share of the fall. The loss of models with norms levels off below 4 times its minimum.
const GIVEN_BACK: f64 = 0.5;

/// Steps after which the mean is taken as the initial value.
const FIRST: usize = 10;

/// The proposal is the rate of the minimum divided by this.
const BELOW_LEAST: f64 = 10.0;

/// Steps on each side over which a slope is measured.
const REACH: usize = 3;

/// Minimum relative fall of the mean for a proposal.
const FALL: f64 = 0.02;

/// The rates of a test.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Range {
    /// First rate.
    pub from: f64,
    /// Last rate, greater than the first.
    pub to: f64,
    /// Steps between them by equal factors; 2 or more.
    pub steps: u64,
}

/// A step of the test.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SweepStep {
    /// Its learning rate.
    pub rate: f64,
    /// The loss before it, in nats a token.
    pub loss: f64,
    /// Running mean of the losses so far.
    pub mean: f64,
}

/// The result of a test.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sweep {
    /// The steps.
    pub tried: Vec<SweepStep>,
    /// Whether it ended because the loss rose too far or was NaN.
    pub diverged: bool,
    /// The rate of the minimum of the mean.
    pub least_at: Option<f64>,
    /// The rate of the steepest fall of the mean, over the rate's logarithm.
    pub steepest_at: Option<f64>,
    /// The proposed rate; `None` if the loss never fell.
    pub proposal: Option<f64>,
    /// How the proposal was chosen, or why there is none.
    pub remark: &'static str,
}

/// Runs a learning-rate range test with a run's model, data, batches, optimizer and seed. Nothing is saved. `on_step` is
/// called with each step.
///
/// # Errors
/// As [`run`](crate::run()); a loss that isn't finite is not an error here, but ends the test.
pub fn lr_find(
    config: &RunConfig,
    range: Range,
    interrupt: &AtomicBool,
    on_step: &mut dyn FnMut(&SweepStep),
) -> Result<Sweep, RunError> {
    let base = open_base(config)?;
    let data = Data::read(config, &base.tokenizer, &mut |_| ())?;
    let plan = sweeping(plan(config, &data.train)?, range);
    let (base, data, plan) = (&base, &data, &plan);
    let job = SweepJob { config, base, data, plan, interrupt, on_step };
    run_on(resolve(config.model.backend), job)?
}

/// The plan with the rates and steps of the test.
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
    on_step: &'a mut (dyn FnMut(&SweepStep) + 'o),
}

impl Job for SweepJob<'_, '_> {
    type Output = Result<Sweep, RunError>;

    fn run<A: TrainBackend>(self, device: A::Device) -> Self::Output {
        let Self { config, base, data, plan, interrupt, on_step } = self;
        let (model, _) = trainable::<A>(config, base, None, &device)?;
        let mut losses = Losses::default();
        let pad_id = pad_id(&base.tokenizer);
        let trained = train(model, &base.config, &data.train, pad_id, plan, |log, _| {
            let go_on = losses.record(log.learning_rate, log.loss);
            if let Some(last) = losses.tried.last() {
                on_step(last);
            }
            let go_on = go_on && !interrupt.load(Ordering::Relaxed);
            Ok::<_, TrainError>(if go_on { Flow::Continue } else { Flow::Stop })
        });
        match trained {
            Ok(_) => {}
            // The effect of too high a rate.
            Err(TrainError::Loss { .. } | TrainError::Gradient { .. }) => losses.diverged = true,
            Err(error) => return Err(error.into()),
        }
        Ok(losses.result())
    }
}

/// The losses of a test so far.
#[derive(Debug, Default)]
struct Losses {
    tried: Vec<SweepStep>,
    sum: f64,
    weight: f64,
    diverged: bool,
}

impl Losses {
    /// Records a step. Returns whether the test continues.
    fn record(&mut self, rate: f64, loss: f64) -> bool {
        if !loss.is_finite() {
            self.diverged = true;
            return false;
        }
        self.sum = KEEP * self.sum + (1.0 - KEEP) * loss;
        self.weight = KEEP * self.weight + (1.0 - KEEP);
        let mean = self.sum / self.weight;
        self.tried.push(SweepStep { rate, loss, mean });
        let least = self.tried.iter().fold(f64::INFINITY, |least, tried| least.min(tried.mean));
        let gave_back = self.tried.get(FIRST - 1).is_some_and(|first| {
            let fell = first.mean - least;
            fell > FELL * first.mean && mean > least + GIVEN_BACK * fell
        });
        self.diverged = gave_back || mean > DIVERGED * least;
        !self.diverged
    }

    fn result(self) -> Sweep {
        let Self { tried, diverged, .. } = self;
        let least = (0..tried.len()).min_by(|a, b| tried[*a].mean.total_cmp(&tried[*b].mean));
        let fell = least.is_some_and(|least| tried[least].mean < (1.0 - FALL) * tried[0].mean);
        let mut sweep = Sweep {
            tried,
            diverged,
            least_at: None,
            steepest_at: None,
            proposal: None,
            remark: "the loss did not fall at any rate: take more steps, or start at a lower rate",
        };
        let Some(least) = least.filter(|_| fell) else { return sweep };
        let tried = &sweep.tried;
        let least_at = tried[least].rate;
        sweep.least_at = Some(least_at);
        sweep.steepest_at = steepest(&tried[..=least]);
        sweep.proposal = Some(least_at / BELOW_LEAST);
        sweep.remark = if least + 1 == tried.len() {
            "the loss was still falling at the last rate: a test to a higher rate may find a higher one"
        } else {
            "a tenth of the rate at which the running mean of the loss was lowest, just before it rises"
        };
        sweep
    }
}

/// The rate of the steepest fall of the mean over the rate's logarithm, measured over [`REACH`] steps on each side; `None`
/// if there are too few. The first steps are left out: their mean is of few losses.
fn steepest(tried: &[SweepStep]) -> Option<f64> {
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
            if !taken.record(rate, losses(rate)) {
                break;
            }
        }
        taken.result()
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
    fn the_proposal_is_a_tenth_of_the_rate_of_the_minimum() {
        // Falls from 3 to 1 around 1e-4, and rises steeply from 1e-2 on.
        let loss = |rate: f64| 3.0 - 2.0 / (1.0 + 1e-4 / rate) + (rate / 1e-2).powi(2);
        let sweep = judged(loss);
        assert!(
            sweep.diverged && sweep.tried.len() < 121,
            "it ends where the loss is 4 times its minimum"
        );
        let least = sweep.least_at.unwrap();
        assert!((1e-3..2e-2).contains(&least), "{least}");
        assert!((sweep.proposal.unwrap() * 10.0 / least - 1.0).abs() < 1e-12);
        let steepest = sweep.steepest_at.unwrap();
        // The mean follows the loss some steps later.
        assert!((5e-5..1e-3).contains(&steepest), "{steepest}");
    }

    #[test]
    fn a_loss_that_rises_and_levels_off_ends_the_test() {
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
    fn a_loss_still_falling_is_remarked() {
        let sweep = judged(|rate| 3.0 - rate.log10() / 10.0);
        assert!(!sweep.diverged);
        assert_eq!(sweep.tried.len(), 121);
        assert!(sweep.remark.contains("still falling"), "{}", sweep.remark);
    }

    #[test]
    fn the_mean_of_one_is_itself() {
        let mut losses = Losses::default();
        losses.record(1e-4, 7.5);
        assert!((losses.tried[0].mean - 7.5).abs() < 1e-12);
    }
}
