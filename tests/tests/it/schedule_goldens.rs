//! Schedules equal transformers', but for warm-up: emberlm's step s has transformers' rate of step s + 1 there, so that the first
//! step isn't lost on a rate of 0.

use std::num::NonZeroU64;

use emberlm::trainer::schedule::{DecaySpan, Warmup};
use emberlm::{Curve, DecayShape, LearningRate};
use emberlm_tests::golden_json;
use serde_json::Value;

fn curve(function: &str, arguments: &Value) -> Curve {
    match function {
        "get_constant_schedule_with_warmup" => Curve::Constant,
        "get_linear_schedule_with_warmup" => Curve::Linear,
        "get_cosine_schedule_with_warmup" | "get_cosine_with_min_lr_schedule_with_warmup" => {
            Curve::Cosine
        }
        "get_polynomial_decay_schedule_with_warmup" => {
            Curve::Polynomial { power: arguments["power"].as_f64().unwrap() }
        }
        "get_inverse_sqrt_schedule" => Curve::InverseSqrt,
        "get_wsd_schedule" => Curve::Wsd {
            decay: arguments["num_decay_steps"]
                .as_u64()
                .and_then(NonZeroU64::new)
                .map(DecaySpan::Steps)
                .unwrap(),
            shape: match arguments["decay_type"].as_str().unwrap() {
                "linear" => DecayShape::Linear,
                "1-sqrt" => DecayShape::OneMinusSqrt,
                "cosine" => DecayShape::Cosine,
                other => panic!("{other}"),
            },
        },
        other => panic!("{other}"),
    }
}

#[test]
fn rates_equal_transformers() {
    let golden = golden_json("optimizer/schedules.json");
    let schedules = golden["schedules"].as_array().unwrap();
    assert_eq!(schedules.len(), 22);
    for row in schedules {
        let arguments = &row["arguments"];
        let floor = ["min_lr_rate", "min_lr_ratio", "lr_end"]
            .iter()
            .find_map(|name| arguments[*name].as_f64())
            .unwrap_or(0.0);
        let warmup = arguments["num_warmup_steps"].as_u64().unwrap();
        let rate = LearningRate {
            curve: curve(row["function"].as_str().unwrap(), arguments),
            peak: 1.0,
            floor,
            warmup: Warmup::Steps(warmup),
            steps: row["steps"].as_u64().unwrap(),
        };
        let rates = row["rates"].as_array().unwrap();
        // Where warm-up rises from a minimum that isn't 0, it rises otherwise: ours begins at 0 always.
        let rises_from_0 = rates[0].as_f64() == Some(0.0);
        // Past the end transformers' cosine rises again; ours does not.
        for (step, expected) in rates.iter().enumerate().take(rate.steps as usize + 1) {
            let step = step as u64;
            let ours = match step {
                _ if step >= warmup => rate.at(step),
                0 => continue,
                _ if !rises_from_0 => continue,
                _ => rate.at(step - 1),
            };
            let expected = expected.as_f64().unwrap();
            assert!((ours - expected).abs() < 1e-12, "{row}: step {step}: {ours}, not {expected}");
        }
    }
}
