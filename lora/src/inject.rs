//! Adding adapters to the linear layers of a loaded model.

use burn::tensor::backend::Backend;

use crate::{Adapter, Linear, LoraConfig, LoraConfigError};

/// A linear layer of a model with its path.
pub struct NamedLinear<'a, B: Backend> {
    /// The path, as in the checkpoint, without `.weight`.
    pub name: String,
    /// Whether it is the model's output head, which `all-linear` excludes.
    pub is_head: bool,
    /// The layer.
    pub linear: &'a mut Linear<B>,
}

/// Why adapters can't be injected.
#[derive(Debug, thiserror::Error)]
pub enum InjectError {
    /// An invalid configuration.
    #[error(transparent)]
    Config(#[from] LoraConfigError),
    /// A target without a matching layer.
    #[error(
        "target_modules: {targets} matches no linear layer of this model. Available: {available}, or `all-linear`"
    )]
    NoMatch {
        /// The targets without a match.
        targets: String,
        /// The model's kinds of linear layers.
        available: String,
    },
}

/// Adds a fresh adapter to every layer that `config` targets, and returns the layers' names.
///
/// # Errors
/// [`InjectError::NoMatch`] if any target matches no layer: a typo in a list must not go unnoticed.
pub fn inject<B: Backend>(
    mut linears: Vec<NamedLinear<'_, B>>,
    config: &LoraConfig,
    seed: u64,
    device: &B::Device,
) -> Result<Vec<String>, InjectError> {
    config.check()?;
    refuse_targets_without_match(&linears, config)?;
    let mut injected = Vec::new();
    for NamedLinear { name, is_head, linear } in &mut linears {
        let Some(shape) = config.adapter_shape(name, *is_head, linear.dims())? else { continue };
        linear.adapter = Some(Adapter::fresh(name, shape, seed, device));
        injected.push(name.clone());
    }
    Ok(injected)
}

fn refuse_targets_without_match<B: Backend>(
    linears: &[NamedLinear<'_, B>],
    config: &LoraConfig,
) -> Result<(), InjectError> {
    use crate::Targets;
    // Each name of a list is checked separately.
    let alone: Vec<(String, LoraConfig)> = match &config.targets {
        Targets::AllLinear => vec![("`all-linear`".into(), config.clone())],
        Targets::Regex(pattern) => {
            vec![(format!("the regular expression `{pattern}`"), config.clone())]
        }
        Targets::Names(names) if names.is_empty() => vec![("an empty list".into(), config.clone())],
        Targets::Names(names) => names
            .iter()
            .map(|name| {
                let targets = Targets::Names(vec![name.clone()]);
                (format!("`{name}`"), LoraConfig { targets, ..config.clone() })
            })
            .collect(),
    };
    let mut unmatched = Vec::new();
    for (label, config) in alone {
        let mut any = false;
        for linear in linears {
            any |= config.targets_layer(&linear.name, linear.is_head)?;
        }
        if !any {
            unmatched.push(label);
        }
    }
    if unmatched.is_empty() {
        return Ok(());
    }
    let mut available: Vec<&str> =
        linears.iter().map(|l| l.name.rsplit('.').next().unwrap_or(&l.name)).collect();
    available.sort_unstable();
    available.dedup();
    Err(InjectError::NoMatch { targets: unmatched.join(", "), available: available.join(", ") })
}
