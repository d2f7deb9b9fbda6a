//! The LoRA configuration: rank, scale and target layers.

use std::collections::BTreeMap;

use fancy_regex::Regex;
use serde::{Serialize, Serializer};

use crate::AdapterShape;

/// The layers to adapt, as in PEFT's `target_modules`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Targets {
    /// Every linear layer except the output head.
    AllLinear,
    /// Names that end with one of these after a dot (`q_proj` matches `model.layers.0.self_attn.q_proj`).
    Names(Vec<String>),
    /// Names that this regular expression matches completely.
    Regex(String),
}

impl Serialize for Targets {
    /// In the form of PEFT's `target_modules`.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::AllLinear => "all-linear".serialize(serializer),
            Self::Names(names) => names.serialize(serializer),
            Self::Regex(pattern) => pattern.serialize(serializer),
        }
    }
}

/// A LoRA configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct LoraConfig {
    /// Rank r of the factors.
    pub r: usize,
    /// Numerator of the scale.
    pub alpha: f64,
    /// Probability of dropping an input feature of the delta in training.
    pub dropout: f64,
    /// The layers to adapt.
    pub targets: Targets,
    /// Scale by `alpha / √r` (Kalajdzievski, 2023, arXiv:2312.03732) instead of `alpha / r`.
    pub use_rslora: bool,
    /// Other ranks for layers by name (suffix at a dot, or a regular expression).
    pub rank_pattern: BTreeMap<String, usize>,
    /// Other alphas for layers by name (suffix at a dot, or a regular expression).
    pub alpha_pattern: BTreeMap<String, f64>,
    /// Only these blocks, if `targets` is a list of names or `all-linear`.
    pub layers_to_transform: Option<Vec<usize>>,
}

impl Default for LoraConfig {
    /// PEFT's defaults, with all linear layers.
    fn default() -> Self {
        Self {
            r: 8,
            alpha: 8.0,
            dropout: 0.0,
            targets: Targets::AllLinear,
            use_rslora: false,
            rank_pattern: BTreeMap::new(),
            alpha_pattern: BTreeMap::new(),
            layers_to_transform: None,
        }
    }
}

/// Why a LoRA configuration can't be used.
#[derive(Debug, thiserror::Error)]
pub enum LoraConfigError {
    /// An invalid regular expression.
    #[error("{key}: `{pattern}` is not a valid regular expression: {reason}")]
    Pattern {
        /// The key.
        key: &'static str,
        /// The pattern.
        pattern: String,
        /// The reason.
        reason: String,
    },
    /// A number out of range.
    #[error("{key} is {found}, expected {expected}")]
    OutOfRange {
        /// The key.
        key: &'static str,
        /// The value.
        found: f64,
        /// The valid values.
        expected: &'static str,
    },
}

impl LoraConfig {
    /// Rank and scale of the layer `name`, with patterns applied.
    ///
    /// # Errors
    /// [`LoraConfigError::Pattern`].
    pub fn rank_and_scaling(&self, name: &str) -> Result<(usize, f64), LoraConfigError> {
        let r = by_pattern("rank_pattern", &self.rank_pattern, name)?.unwrap_or(self.r);
        let alpha = by_pattern("alpha_pattern", &self.alpha_pattern, name)?.unwrap_or(self.alpha);
        let root = if self.use_rslora { (r as f64).sqrt() } else { r as f64 };
        Ok((r, alpha / root))
    }

    /// The adapter of the layer `name` of dimensions `[d_out, d_in]`; `None` if it is not targeted. `is_head`: it is
    /// the model's output head.
    ///
    /// # Errors
    /// [`LoraConfigError::Pattern`].
    pub fn adapter_shape(
        &self,
        name: &str,
        is_head: bool,
        [d_out, d_in]: [usize; 2],
    ) -> Result<Option<AdapterShape>, LoraConfigError> {
        if !self.targets_layer(name, is_head)? {
            return Ok(None);
        }
        let (r, scaling) = self.rank_and_scaling(name)?;
        Ok(Some(AdapterShape { d_out, d_in, r, scaling, dropout: self.dropout }))
    }

    /// Checks the numbers.
    ///
    /// # Errors
    /// [`LoraConfigError::OutOfRange`].
    pub fn check(&self) -> Result<(), LoraConfigError> {
        let ranks = std::iter::once(&self.r).chain(self.rank_pattern.values());
        if ranks.into_iter().any(|&r| r == 0) {
            return Err(LoraConfigError::OutOfRange {
                key: "r",
                found: 0.0,
                expected: "a rank of at least 1",
            });
        }
        if !(0.0..1.0).contains(&self.dropout) {
            return Err(LoraConfigError::OutOfRange {
                key: "dropout",
                found: self.dropout,
                expected: "a probability in [0, 1)",
            });
        }
        if !self.alpha.is_finite() {
            return Err(LoraConfigError::OutOfRange {
                key: "alpha",
                found: self.alpha,
                expected: "a finite number",
            });
        }
        Ok(())
    }

    /// Whether the layer `name` gets an adapter. `is_head`: it is the model's output head.
    ///
    /// # Errors
    /// [`LoraConfigError::Pattern`].
    pub fn targets_layer(&self, name: &str, is_head: bool) -> Result<bool, LoraConfigError> {
        match &self.targets {
            Targets::AllLinear => Ok(!is_head && self.in_chosen_block(name)),
            Targets::Names(names) => {
                let matches = names.iter().any(|target| is_suffix_at_dot(name, target));
                Ok(matches && self.in_chosen_block(name))
            }
            Targets::Regex(pattern) => matches_whole("target_modules", pattern, name),
        }
    }

    fn in_chosen_block(&self, name: &str) -> bool {
        match &self.layers_to_transform {
            None => true,
            Some(blocks) => block_index(name).is_some_and(|index| blocks.contains(&index)),
        }
    }
}

/// The N of `….layers.N.…`.
fn block_index(name: &str) -> Option<usize> {
    let (_, rest) = name.split_once("layers.")?;
    rest.split('.').next()?.parse().ok()
}

fn is_suffix_at_dot(name: &str, suffix: &str) -> bool {
    name.strip_suffix(suffix).is_some_and(|head| head.is_empty() || head.ends_with('.'))
}

fn matches_whole(key: &'static str, pattern: &str, name: &str) -> Result<bool, LoraConfigError> {
    let error = |reason: String| LoraConfigError::Pattern { key, pattern: pattern.into(), reason };
    let regex = Regex::new(&format!("^(?:{pattern})$")).map_err(|e| error(e.to_string()))?;
    regex.is_match(name).map_err(|e| error(e.to_string()))
}

/// PEFT's lookup: the first key that matches the end of the layer's name after a dot, as a regular expression.
fn by_pattern<T: Copy>(
    key: &'static str,
    patterns: &BTreeMap<String, T>,
    name: &str,
) -> Result<Option<T>, LoraConfigError> {
    for (pattern, &value) in patterns {
        if is_suffix_at_dot(name, pattern)
            || matches_whole(key, &format!("(?:.*\\.)?(?:{pattern})"), name)?
        {
            return Ok(Some(value));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    const Q: &str = "model.layers.12.self_attn.q_proj";

    fn with(targets: Targets) -> LoraConfig {
        LoraConfig { targets, ..LoraConfig::default() }
    }

    #[test]
    fn a_name_matches_at_a_dot_only() {
        let config = with(Targets::Names(vec!["proj".into()]));
        assert!(!config.targets_layer(Q, false).unwrap());
        let config = with(Targets::Names(vec!["self_attn.q_proj".into()]));
        assert!(config.targets_layer(Q, false).unwrap());
    }

    #[test]
    fn a_regex_matches_the_whole_name() {
        let config = with(Targets::Regex("q_proj".into()));
        assert!(!config.targets_layer(Q, false).unwrap());
        let config = with(Targets::Regex(r".*layers\.(1|12)\..*(q|o)_proj".into()));
        assert!(config.targets_layer(Q, false).unwrap());
        let error = with(Targets::Regex("(".into())).targets_layer(Q, false).unwrap_err();
        assert!(error.to_string().contains("target_modules"), "{error}");
    }

    #[test]
    fn all_linear_leaves_the_head_out() {
        let config = with(Targets::AllLinear);
        assert!(config.targets_layer(Q, false).unwrap());
        assert!(!config.targets_layer("lm_head", true).unwrap());
    }

    #[test]
    fn patterns_change_rank_and_alpha_by_layer() {
        let config = LoraConfig {
            r: 4,
            alpha: 8.0,
            rank_pattern: [("layers.12.self_attn.q_proj".to_string(), 16)].into(),
            alpha_pattern: [("q_proj".to_string(), 32.0)].into(),
            ..LoraConfig::default()
        };
        assert_eq!(config.rank_and_scaling(Q).unwrap(), (16, 2.0));
        assert_eq!(config.rank_and_scaling("model.layers.1.mlp.up_proj").unwrap(), (4, 2.0));
        let rs = LoraConfig { use_rslora: true, ..config };
        assert_eq!(rs.rank_and_scaling(Q).unwrap(), (16, 8.0));
    }

    #[test]
    fn only_selected_blocks_are_adapted() {
        let config =
            LoraConfig { layers_to_transform: Some(vec![0, 12]), ..with(Targets::AllLinear) };
        assert!(config.targets_layer(Q, false).unwrap());
        assert!(!config.targets_layer("model.layers.1.mlp.up_proj", false).unwrap());
    }
}
