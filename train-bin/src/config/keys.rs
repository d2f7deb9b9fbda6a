//! The keys there are, and the one that a misspelt key was probably meant to be.

/// Every section.
pub(super) const SECTIONS: [&str; 4] = ["model", "lora", "data", "train"];

/// Every key. A test holds this list equal to the fields of `RawConfig`.
pub(super) const KEYS: &[&str] = &[
    "model.path",
    "model.config",
    "model.tokenizer",
    "model.backend",
    "model.dtype",
    "model.quant",
    "model.double_quant",
    "model.quant_skip",
    "model.add_tokens",
    "lora.init_from",
    "lora.r",
    "lora.alpha",
    "lora.target_modules",
    "lora.use_rslora",
    "lora.dropout",
    "data.train",
    "data.source",
    "data.eval",
    "data.format",
    "data.template",
    "data.max_length",
    "data.train_on",
    "data.packing",
    "data.group_by_length",
    "data.cache_dir",
    "data.shuffle",
    "data.date",
    "data.prompts",
    "data.prompt_template",
    "data.completion_template",
    "data.system_template",
    "data.text_template",
    "data.text_by",
    "data.on_error",
    "data.max_errors",
    "data.rejects",
    "data.fields",
    "train.output_dir",
    "train.overwrite",
    "train.epochs",
    "train.steps",
    "train.micro_batch_size",
    "train.grad_accumulation",
    "train.optimizer",
    "train.learning_rate",
    "train.min_learning_rate",
    "train.schedule",
    "train.warmup_steps",
    "train.warmup_ratio",
    "train.weight_decay",
    "train.betas",
    "train.eps",
    "train.max_grad_norm",
    "train.recompute",
    "train.neftune_alpha",
    "train.momentum",
    "train.nesterov",
    "train.clip_threshold",
    "train.muon_scale",
    "train.lora_plus_ratio",
    "train.calibrate_ab",
    "train.embedding_learning_rate",
    "train.decay_norms_and_biases",
    "train.decay_steps",
    "train.decay_ratio",
    "train.decay_shape",
    "train.power",
    "train.clip",
    "train.clip_factor",
    "train.clip_decay",
    "train.seed",
    "train.eval_every",
    "train.save_every",
    "train.keep_last",
    "train.log_every",
    "train.tensorboard",
    "train.threads",
    "train.trainable",
    "train.on_nonfinite",
    "train.max_skipped",
    "train.on_spike",
    "train.spike_threshold",
    "train.save_best",
    "train.result",
    "train.patience",
    "train.min_improvement",
    "train.debug",
];

/// Keys that hold one path, a list of paths, or a list of tables with a `path`.
pub(super) const PATH_KEYS: [&str; 10] = [
    "model.path",
    "model.config",
    "model.tokenizer",
    "lora.init_from",
    "data.train",
    "data.source",
    "data.eval",
    "data.cache_dir",
    "data.rejects",
    "train.output_dir",
];

/// Keys of which at most one may be given.
const EXCLUSIVE: [[&str; 2]; 5] = [
    ["model.path", "model.config"],
    ["data.train", "data.source"],
    ["train.epochs", "train.steps"],
    ["train.warmup_steps", "train.warmup_ratio"],
    ["train.decay_steps", "train.decay_ratio"],
];

/// What other trainers call a setting, and our key for it.
const OTHER_NAMES: &[(&str, &str)] = &[
    ("model_name_or_path", "model.path"),
    ("base_model", "model.path"),
    ("torch_dtype", "model.dtype"),
    ("device", "model.backend"),
    ("bnb_4bit_quant_type", "model.quant"),
    ("bnb_4bit_use_double_quant", "model.double_quant"),
    ("llm_int8_skip_modules", "model.quant_skip"),
    ("rank", "lora.r"),
    ("lora_r", "lora.r"),
    ("lora_alpha", "lora.alpha"),
    ("lora_dropout", "lora.dropout"),
    ("datasets", "data.source"),
    ("interleave_probs", "data.source"),
    ("sample_packing", "data.packing"),
    ("pack", "data.packing"),
    ("field_instruction", "data.fields"),
    ("max_seq_length", "data.max_length"),
    ("sequence_len", "data.max_length"),
    ("num_train_epochs", "train.epochs"),
    ("num_epochs", "train.epochs"),
    ("max_steps", "train.steps"),
    ("batch_size", "train.micro_batch_size"),
    ("per_device_train_batch_size", "train.micro_batch_size"),
    ("gradient_accumulation_steps", "train.grad_accumulation"),
    ("optim", "train.optimizer"),
    ("neftune_noise_alpha", "train.neftune_alpha"),
    ("lr", "train.learning_rate"),
    ("min_lr", "train.min_learning_rate"),
    ("lr_scheduler", "train.schedule"),
    ("lr_scheduler_type", "train.schedule"),
    ("adam_epsilon", "train.eps"),
    ("loraplus_lr_ratio", "train.lora_plus_ratio"),
    ("embedding_lr", "train.embedding_learning_rate"),
    ("num_decay_steps", "train.decay_steps"),
    ("gradient_clipping", "train.clip"),
    ("gradient_checkpointing", "train.recompute"),
    ("eval_steps", "train.eval_every"),
    ("save_steps", "train.save_every"),
    ("save_total_limit", "train.keep_last"),
    ("logging_steps", "train.log_every"),
    ("unfrozen_parameters", "train.trainable"),
    ("load_best_model_at_end", "train.result"),
    ("early_stopping_patience", "train.patience"),
    ("early_stopping_threshold", "train.min_improvement"),
    ("report_to", "train.tensorboard"),
    ("overwrite_output_dir", "train.overwrite"),
];

/// The key that may not stand beside `key`.
pub(super) fn excluded_by(key: &str) -> Option<&'static str> {
    EXCLUSIVE.iter().find_map(|&[a, b]| match key {
        _ if key == a => Some(b),
        _ if key == b => Some(a),
        _ => None,
    })
}

/// The keys of a section, in full.
pub(super) fn keys_of(section: &str) -> Vec<String> {
    let belongs = |key: &&&str| key.split_once('.').is_some_and(|(of, _)| of == section);
    KEYS.iter().filter(belongs).map(|&key| key.to_owned()).collect()
}

/// The key that `key`, which does not exist, was probably meant to be. A likeness within the
/// section counts for more.
pub(super) fn nearest_key(key: &str) -> Option<String> {
    let (section, name) = key.rsplit_once('.').unwrap_or(("", key));
    if let Some((_, ours)) = OTHER_NAMES.iter().find(|(theirs, _)| *theirs == name) {
        return Some((*ours).to_owned());
    }
    let score = |candidate: &&'static str| {
        let (of, known) = candidate.split_once('.')?;
        let likeness = strsim::normalized_damerau_levenshtein(name, known);
        let (enough, bonus) = if of == section { (0.6, 0.1) } else { (0.8, 0.0) };
        (likeness >= enough).then_some((likeness + bonus, *candidate))
    };
    best(KEYS.iter().filter_map(score))
}

/// The section that `section`, which does not exist, was probably meant to be.
pub(super) fn nearest_section(section: &str) -> Option<String> {
    let likeness =
        |known: &&'static str| (strsim::normalized_damerau_levenshtein(section, known), *known);
    best(SECTIONS.iter().map(likeness).filter(|(likeness, _)| *likeness >= 0.5))
}

fn best(scored: impl Iterator<Item = (f64, &'static str)>) -> Option<String> {
    scored.max_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, name)| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_key_is_found_by_spelling_section_and_foreign_name() {
        let cases = [
            ("train.lerning_rate", Some("train.learning_rate")),
            ("train.warmup_step", Some("train.warmup_steps")),
            ("learning_rate", Some("train.learning_rate")),
            ("train.max_length", Some("data.max_length")),
            ("train.dropout", Some("lora.dropout")),
            ("lora.lora_alpha", Some("lora.alpha")),
            ("train.per_device_train_batch_size", Some("train.micro_batch_size")),
            ("train.zzz", None),
        ];
        for (key, nearest) in cases {
            assert_eq!(nearest_key(key).as_deref(), nearest, "{key}");
        }
    }

    #[test]
    fn foreign_names_and_special_keys_point_to_keys_that_exist() {
        let ours = OTHER_NAMES.iter().map(|(_, ours)| ours);
        for key in ours.chain(PATH_KEYS.iter()).chain(EXCLUSIVE.as_flattened()) {
            assert!(KEYS.contains(key), "{key}");
        }
    }
}
