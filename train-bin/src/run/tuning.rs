//! From the configuration to the numbers of optimizer, schedule and clipping.

use crate::config::{self, Clip, DecaySpan, Optimizer, Schedule, TrainSection, Warmup};
use crate::trainer::clip::ClipConfig;
use crate::trainer::optimizer::{
    AdafactorConfig, AdamWConfig, Algorithm, LionConfig, MuonConfig, MuonScale, OptimizerConfig,
    ParamGroups, SgdConfig,
};
use crate::trainer::schedule::{Curve, DecayShape, LearningRate};

/// The learning rate of a run of so many steps.
pub(crate) fn learning_rate(train: &TrainSection, steps: u64) -> LearningRate {
    let of_all = |share: f64| (share * steps as f64).ceil() as u64;
    let tuning = &train.tuning;
    LearningRate {
        curve: match train.schedule {
            Schedule::Cosine => Curve::Cosine,
            Schedule::Linear => Curve::Linear,
            Schedule::Constant => Curve::Constant,
            Schedule::Polynomial => Curve::Polynomial { power: tuning.power },
            Schedule::InverseSqrt => Curve::InverseSqrt,
            Schedule::Wsd => Curve::Wsd {
                decay: match tuning.decay {
                    DecaySpan::Steps(steps) => steps.get(),
                    DecaySpan::Ratio(share) => of_all(share),
                },
                shape: match tuning.decay_shape {
                    config::DecayShape::OneMinusSqrt => DecayShape::OneMinusSqrt,
                    config::DecayShape::Linear => DecayShape::Linear,
                    config::DecayShape::Cosine => DecayShape::Cosine,
                },
            },
        },
        peak: train.learning_rate,
        floor: train.min_learning_rate,
        warmup: match train.warmup {
            Warmup::Steps(steps) => steps,
            Warmup::Ratio(share) => of_all(share),
        },
        steps,
    }
}

/// The optimizer and its constants.
pub(crate) fn optimizer(train: &TrainSection) -> OptimizerConfig {
    let TrainSection { betas: [beta1, beta2], eps, weight_decay, ref tuning, .. } = *train;
    let adamw = AdamWConfig { beta1, beta2, eps, weight_decay };
    let (momentum, nesterov) = (tuning.momentum, tuning.nesterov);
    let algorithm = match train.optimizer {
        Optimizer::AdamW => Algorithm::AdamW(adamw),
        Optimizer::AdamW8bit => Algorithm::AdamW8bit(adamw),
        Optimizer::Lion => Algorithm::Lion(LionConfig { beta1, beta2, weight_decay }),
        Optimizer::Adafactor => Algorithm::Adafactor(AdafactorConfig {
            eps,
            clip_threshold: tuning.clip_threshold,
            weight_decay,
        }),
        Optimizer::Sgd => Algorithm::Sgd(SgdConfig { momentum, nesterov, weight_decay }),
        Optimizer::Muon => Algorithm::Muon(MuonConfig {
            momentum,
            nesterov,
            scale: match tuning.muon_scale {
                config::MuonScale::MatchRmsAdamw => MuonScale::MatchRms,
                config::MuonScale::Original => MuonScale::Original,
            },
            adamw,
        }),
    };
    let embedding_rate = tuning.embedding_learning_rate.unwrap_or(train.learning_rate);
    let groups = ParamGroups {
        lora_plus_ratio: tuning.lora_plus_ratio.unwrap_or(1.0),
        embedding_ratio: embedding_rate / train.learning_rate,
        decay_norms_and_biases: tuning.decay_norms_and_biases,
        calibrate_ab: tuning.calibrate_ab.map_or(0, std::num::NonZeroU64::get),
    };
    OptimizerConfig { algorithm, groups }
}

/// How gradients are clipped.
pub(crate) fn clip(train: &TrainSection) -> ClipConfig {
    let tuning = &train.tuning;
    match (tuning.clip, train.max_grad_norm) {
        (Clip::Norm, Some(norm)) => ClipConfig::Norm(norm),
        (Clip::Norm, None) | (Clip::Off, _) => ClipConfig::Off,
        (Clip::PerTensor, _) => {
            ClipConfig::PerTensor { factor: tuning.clip_factor, decay: tuning.clip_decay }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn train(text: &str) -> TrainSection {
        config::load_str(text, "test", &[]).unwrap().train
    }

    #[test]
    fn every_constant_reaches_its_place() {
        let adamw = AdamWConfig { beta1: 0.8, beta2: 0.95, eps: 1e-6, weight_decay: 0.1 };
        let shared = "[train]\nbetas = [0.8, 0.95]\neps = 1e-6\nweight_decay = 0.1\n";
        let sgd = SgdConfig { momentum: 0.5, nesterov: true, weight_decay: 0.1 };
        let muon = MuonConfig { momentum: 0.95, nesterov: true, scale: MuonScale::Original, adamw };
        let cases = [
            ("optimizer = 'adamw'", Algorithm::AdamW(adamw)),
            ("optimizer = 'adamw8bit'", Algorithm::AdamW8bit(adamw)),
            (
                "optimizer = 'lion'",
                Algorithm::Lion(LionConfig { beta1: 0.8, beta2: 0.95, weight_decay: 0.1 }),
            ),
            (
                "optimizer = 'adafactor'\nclip_threshold = 0.5",
                Algorithm::Adafactor(AdafactorConfig {
                    eps: 1e-6,
                    clip_threshold: 0.5,
                    weight_decay: 0.1,
                }),
            ),
            ("optimizer = 'sgd'\nmomentum = 0.5\nnesterov = true", Algorithm::Sgd(sgd)),
            ("optimizer = 'muon'\nmuon_scale = 'original'", Algorithm::Muon(muon)),
        ];
        for (text, algorithm) in cases {
            let config = optimizer(&train(&format!("{shared}{text}")));
            assert_eq!(config, algorithm.into());
            assert!(text.contains(algorithm.name()), "{text}");
        }
        let Algorithm::Adafactor(plain) =
            optimizer(&train("train.optimizer = 'adafactor'")).algorithm
        else {
            panic!()
        };
        assert_eq!(plain, AdafactorConfig::default());
    }

    #[test]
    fn groups_are_relative_to_the_rate() {
        let text = "[lora]\n[train]\nlearning_rate = 1e-3\nembedding_learning_rate = 1e-4\n\
            lora_plus_ratio = 16\ndecay_norms_and_biases = true";
        let groups = optimizer(&train(text)).groups;
        assert!((groups.embedding_ratio - 0.1).abs() < 1e-15);
        assert_eq!(groups.lora_plus_ratio, 16.0);
        assert!(groups.decay_norms_and_biases);
        let calibrated = optimizer(&train("[lora]\n[train]\ncalibrate_ab = 8")).groups;
        assert_eq!(calibrated, ParamGroups { calibrate_ab: 8, ..ParamGroups::default() });
    }

    #[test]
    fn spans_are_steps_or_shares() {
        let wsd =
            |text: &str| learning_rate(&train(&format!("train.schedule = 'wsd'\n{text}")), 95);
        let decay = |text: &str| match wsd(text).curve {
            Curve::Wsd { decay, .. } => decay,
            _ => panic!(),
        };
        assert_eq!((decay(""), decay("train.decay_ratio = 0.5")), (10, 48));
        assert_eq!(decay("train.decay_steps = 7"), 7);
        assert_eq!(wsd("train.warmup_ratio = 0.03").warmup, 3);
    }

    #[test]
    fn clipping_is_one_of_three() {
        let clip = |text: &str| clip(&train(text));
        assert_eq!(clip(""), ClipConfig::Norm(1.0));
        assert_eq!(clip("train.max_grad_norm = 0"), ClipConfig::Off);
        assert_eq!(clip("train.clip = 'off'"), ClipConfig::Off);
        let text = "train.clip = 'per_tensor'\ntrain.clip_factor = 3";
        assert_eq!(clip(text), ClipConfig::PerTensor { factor: 3.0, decay: 0.95 });
    }
}
