//! Constants of optimizers, schedules and clipping.

use super::*;

#[test]
fn defaults_follow_the_optimizer() {
    let train = |name: &str| read(&format!("train.optimizer = '{name}'")).unwrap().train;
    let (lion, muon, sgd) = (train("lion"), train("muon"), train("sgd"));
    assert_eq!(lion.betas, [0.9, 0.99]);
    assert_eq!(train("adafactor").eps, 1e-30);
    assert_eq!((muon.tuning.momentum, muon.tuning.nesterov), (0.95, true));
    assert_eq!((sgd.tuning.momentum, sgd.tuning.nesterov), (0.9, false));
    assert_eq!(train("adamw").tuning, Tuning::default());
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
fn clip_and_norm_agree() {
    let train = |text: &str| read(text).unwrap().train;
    let off = train("train.max_grad_norm = false");
    assert_eq!((off.tuning.clip, off.max_grad_norm), (Clip::Off, None));
    let norm = train("train.clip = 'norm'");
    assert_eq!((norm.tuning.clip, norm.max_grad_norm), (Clip::Norm, Some(1.0)));
    let own = train("train.clip = 'per_tensor'");
    assert_eq!((own.tuning.clip, own.max_grad_norm), (Clip::PerTensor, None));
}

#[test]
fn constants_of_something_else_are_refused() {
    for (text, said) in [
        ("momentum = 0.9", "set train.optimizer to sgd or muon"),
        ("optimizer = 'lion'\nnesterov = true", "train.optimizer = \"lion\""),
        ("optimizer = 'sgd'\nmuon_scale = 'original'", "set train.optimizer to muon"),
        ("clip_threshold = 1", "set train.optimizer to adafactor"),
        ("decay_steps = 3", "set train.schedule to wsd"),
        ("schedule = 'linear'\ndecay_shape = 'linear'", "set train.schedule to wsd"),
        ("power = 2", "set train.schedule to polynomial"),
        ("clip_factor = 2", "set train.clip to per_tensor"),
        ("clip = 'off'\nmax_grad_norm = 1", "set train.clip to norm"),
        ("schedule = 'wsd'\ndecay_steps = 3\ndecay_ratio = 0.5", "remove one of them"),
        ("optimizer = 'sgd'\nmomentum = 0\nnesterov = true", "set a momentum"),
        ("lora_plus_ratio = 16", "add a section [lora]"),
        ("calibrate_ab = 8", "add a section [lora]"),
    ] {
        let [fault] = faults(&format!("[train]\n{text}")).try_into().unwrap();
        assert!(fault.contains("contradict") && fault.contains(said), "{text}: {fault}");
    }
    let [fault] =
        faults("[lora]\n[train]\nlora_plus_ratio = 16\ncalibrate_ab = 8").try_into().unwrap();
    assert!(fault.contains("each sets the rates of A and B"), "{fault}");
}

#[test]
fn numbers_outside_their_range_are_refused() {
    for (beside, key, value, default) in [
        ("optimizer = 'sgd'", "momentum", "1", "0.9"),
        ("optimizer = 'muon'", "momentum", "-0.1", "0.95"),
        ("optimizer = 'adafactor'", "clip_threshold", "0", "1"),
        ("schedule = 'wsd'", "decay_steps", "0", "a tenth of all steps"),
        ("schedule = 'wsd'", "decay_ratio", "0", "0.1"),
        ("schedule = 'wsd'", "decay_ratio", "1.1", "0.1"),
        ("schedule = 'polynomial'", "power", "0", "1"),
        ("schedule = 'polynomial'", "power", "inf", "1"),
        ("clip = 'per_tensor'", "clip_factor", "nan", "2"),
        ("clip = 'per_tensor'", "clip_decay", "1", "0.95"),
        ("", "embedding_learning_rate", "0", "the learning rate"),
        ("", "lora_plus_ratio", "-1", "1"),
        ("", "calibrate_ab", "0", "false"),
        ("optimizer = 'lion'", "betas", "[0.9, 1.0]", "[0.9, 0.99]"),
    ] {
        let text = format!("[lora]\n[train]\n{beside}\n{key} = {value}");
        let [fault] = faults(&text).try_into().unwrap();
        let remedy = format!("remove it for the default, {default}");
        assert!(fault.contains(&format!("`train.{key}`")) && fault.ends_with(&remedy), "{fault}");
    }
    for (beside, key) in
        [("", "clip"), ("optimizer = 'muon'", "muon_scale"), ("schedule = 'wsd'", "decay_shape")]
    {
        let [fault] = faults(&format!("[train]\n{beside}\n{key} = '?'")).try_into().unwrap();
        assert!(fault.contains(&format!("`train.{key}`: expected a ")), "{fault}");
    }
}
