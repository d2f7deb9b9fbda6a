//! Constants of optimizers, schedules and clipping.

use super::*;
use crate::trainer::optimizer::{
    AdafactorConfig, AdamW8bitConfig, AdamWConfig, LionConfig, MuonConfig, MuonScale, ParamGroups,
};

#[test]
fn defaults_follow_the_optimizer() {
    let optimizer = |name: &str| {
        let read = read(&format!("train.optimizer = '{name}'")).unwrap().train.optimizer;
        assert_eq!(read.name(), name);
        read
    };
    assert_eq!(optimizer("adamw"), Algorithm::AdamW(AdamWConfig::default()));
    assert_eq!(
        optimizer("adamw8bit"),
        Algorithm::AdamW8bit(AdamW8bitConfig(AdamWConfig::default()))
    );
    assert_eq!(optimizer("lion"), Algorithm::Lion(LionConfig::default()));
    assert_eq!(optimizer("adafactor"), Algorithm::Adafactor(AdafactorConfig::default()));
    assert_eq!(optimizer("muon"), Algorithm::Muon(MuonConfig::DEFAULT));
    assert_eq!(optimizer("sgd"), Algorithm::Sgd(SgdConfig::DEFAULT));
}

#[test]
fn every_constant_reaches_its_optimizer() {
    let adamw = AdamWConfig { betas: [0.8, 0.95], eps: 1e-6, weight_decay: 0.1 };
    let shared = "[train]\nbetas = [0.8, 0.95]\neps = 1e-6\nweight_decay = 0.1\n";
    let sgd = SgdConfig { momentum: 0.5, nesterov: true, weight_decay: 0.1 };
    let muon = MuonConfig { momentum: 0.95, nesterov: true, scale: MuonScale::Original, adamw };
    let lion = LionConfig { betas: [0.8, 0.95], weight_decay: 0.1 };
    let adafactor = AdafactorConfig { eps: 1e-6, clip_threshold: 0.5, weight_decay: 0.1 };
    for (text, expected) in [
        ("optimizer = 'adamw'", Algorithm::AdamW(adamw)),
        ("optimizer = 'adamw8bit'", Algorithm::AdamW8bit(AdamW8bitConfig(adamw))),
        ("optimizer = 'lion'", Algorithm::Lion(lion)),
        ("optimizer = 'adafactor'\nclip_threshold = 0.5", Algorithm::Adafactor(adafactor)),
        ("optimizer = 'sgd'\nmomentum = 0.5\nnesterov = true", Algorithm::Sgd(sgd)),
        ("optimizer = 'muon'\nmuon_scale = 'original'", Algorithm::Muon(muon)),
    ] {
        let train = read(&format!("{shared}{text}")).unwrap().train;
        assert_eq!(train.optimizer, expected);
    }
}

#[test]
fn groups_are_relative_to_the_learning_rate() {
    let groups = |text: &str| read(text).unwrap().train.optimizer_config().groups;
    let text = "[lora]\n[train]\nlearning_rate = 1e-3\nembedding_learning_rate = 1e-4\n\
        lora_plus_ratio = 16\ndecay_norms_and_biases = true";
    let found = groups(text);
    assert!((found.embedding_ratio - 0.1).abs() < 1e-15);
    assert_eq!(found.lora_plus_ratio, 16.0);
    assert!(found.decay_norms_and_biases);
    let calibrated = groups("[lora]\n[train]\ncalibrate_ab = 8");
    assert_eq!(calibrated, ParamGroups { calibrate_ab: 8, ..ParamGroups::default() });
}

#[test]
fn clipping_is_one_of_three_and_off_at_zero() {
    let clip = |text: &str| read(text).unwrap().train.clip;
    assert_eq!(clip(""), ClipConfig::norm(1.0));
    assert_eq!(clip("train.clip = 'off'"), ClipConfig::Off);
    let text = "train.clip = 'per_tensor'\ntrain.clip_factor = 3";
    assert_eq!(clip(text), ClipConfig::PerTensor { factor: 3.0, decay: 0.95 });
    for value in ["0", "0.0", "false"] {
        assert_eq!(clip(&format!("train.max_grad_norm = {value}")), ClipConfig::Off, "{value}");
    }
    assert_eq!(clip("train.max_grad_norm = 2"), ClipConfig::norm(2.0));
}

#[test]
fn what_is_written_reads_back() {
    for text in [
        "optimizer = 'lion'\nschedule = 'polynomial'\npower = 2",
        "optimizer = 'adafactor'\nclip_threshold = 2\nschedule = 'inverse_sqrt'",
        "optimizer = 'muon'\nmuon_scale = 'original'\nnesterov = false\nschedule = 'wsd'\ndecay_ratio = 0.2",
        "optimizer = 'adamw8bit'\nclip = 'off'\ncalibrate_ab = 4",
        "max_grad_norm = 0",
        "clip = 'per_tensor'\nclip_decay = 0",
        "calibrate_ab = false",
    ] {
        let config = read(&format!("[lora]\n[train]\n{text}")).unwrap();
        let again = load_str(&config.to_toml().unwrap(), "again", &[]).unwrap();
        assert_eq!(again, config, "{text}");
    }
}

#[test]
fn settings_without_effect_are_refused() {
    for (text, expected) in [
        (
            "momentum = 0.9",
            "train.optimizer = \"sgd\" or train.optimizer = \"muon\", and train.optimizer is \"adamw\" (the default)",
        ),
        ("optimizer = 'lion'\nnesterov = true", "train.optimizer (run.toml:2:1) is \"lion\""),
        ("optimizer = 'sgd'\nmuon_scale = 'original'", "needs train.optimizer = \"muon\""),
        ("clip_threshold = 1", "needs train.optimizer = \"adafactor\""),
        ("decay_steps = 3", "needs train.schedule = \"wsd\""),
        ("schedule = 'linear'\ndecay_shape = 'linear'", "needs train.schedule = \"wsd\""),
        ("power = 2", "needs train.schedule = \"polynomial\""),
        ("clip_factor = 2", "needs train.clip = \"per_tensor\""),
        ("clip = 'off'\nmax_grad_norm = 1", "needs train.clip = \"norm\""),
        ("lora_plus_ratio = 16", "needs [lora]"),
        ("calibrate_ab = 8", "needs [lora]"),
    ] {
        let [fault] = faults(&format!("[train]\n{text}")).try_into().unwrap();
        assert!(fault.contains("has no effect") && fault.contains(expected), "{text}: {fault}");
    }
    for (text, expected) in [
        ("schedule = 'wsd'\ndecay_steps = 3\ndecay_ratio = 0.5", "remove one of them"),
        ("optimizer = 'sgd'\nmomentum = 0\nnesterov = true", "set a momentum"),
    ] {
        let [fault] = faults(&format!("[train]\n{text}")).try_into().unwrap();
        assert!(fault.contains("contradict") && fault.contains(expected), "{text}: {fault}");
    }
    let [fault] =
        faults("[lora]\n[train]\nlora_plus_ratio = 16\ncalibrate_ab = 8").try_into().unwrap();
    assert!(fault.contains("both set the learning rates of A and B"), "{fault}");
}

#[test]
fn numbers_outside_their_range_are_refused() {
    for (with, key, value, default) in [
        ("optimizer = 'sgd'", "momentum", "1", "0.9"),
        ("optimizer = 'muon'", "momentum", "-0.1", "0.95"),
        ("optimizer = 'adafactor'", "clip_threshold", "0", "1.0"),
        ("schedule = 'wsd'", "decay_steps", "0", "`decay_ratio`"),
        ("schedule = 'wsd'", "decay_ratio", "0", "0.1"),
        ("schedule = 'wsd'", "decay_ratio", "1.1", "0.1"),
        ("schedule = 'polynomial'", "power", "0", "1.0"),
        ("schedule = 'polynomial'", "power", "inf", "1.0"),
        ("clip = 'per_tensor'", "clip_factor", "nan", "2.0"),
        ("clip = 'per_tensor'", "clip_decay", "1", "0.95"),
        ("", "embedding_learning_rate", "0", "`learning_rate`"),
        ("", "lora_plus_ratio", "-1", "1"),
        ("", "calibrate_ab", "0", "false"),
        ("optimizer = 'lion'", "betas", "[0.9, 1.0]", "[0.9, 0.99]"),
    ] {
        let text = format!("[lora]\n[train]\n{with}\n{key} = {value}");
        let [fault] = faults(&text).try_into().unwrap();
        let remedy = format!("remove it for the default, {default}");
        assert!(fault.contains(&format!("`train.{key}`")) && fault.ends_with(&remedy), "{fault}");
    }
    for (with, key) in
        [("", "clip"), ("optimizer = 'muon'", "muon_scale"), ("schedule = 'wsd'", "decay_shape")]
    {
        let [fault] = faults(&format!("[train]\n{with}\n{key} = '?'")).try_into().unwrap();
        assert!(fault.contains(&format!("`train.{key}`: expected one of ")), "{fault}");
    }
}
