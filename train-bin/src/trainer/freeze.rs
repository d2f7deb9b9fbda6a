//! Choice of the trainable weights in full fine-tuning.

use burn::module::Param;
use burn::tensor::{Tensor, backend::Backend};
use emberlm_lora::walk::{ParamVisitor, for_each_param, set_trainable};
use emberlm_model::CausalLm;

use crate::trainer::step::TrainBackend;

/// Whether `names` select a parameter: by its whole path, or by whole components of it (from dot to dot). No names
/// select all.
pub fn is_named(names: &[String], path: &str) -> bool {
    let dotted = format!(".{path}.");
    names.is_empty() || names.iter().any(|name| dotted.contains(&format!(".{name}.")))
}

/// Names without a matching weight.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "train.trainable: no weight of this model matches {}. Expected whole names, or components of them such as: {}",
    unknown.join(", "),
    available.join(", ")
)]
pub struct UnknownWeights {
    /// The names.
    pub unknown: Vec<String>,
    /// Components of the weights' names.
    pub available: Vec<String>,
}

/// Makes the named weights trainable, and freezes all others.
///
/// # Errors
/// [`UnknownWeights`].
pub fn freeze_except<A: TrainBackend>(
    model: CausalLm<A>,
    names: &[String],
) -> Result<CausalLm<A>, UnknownWeights> {
    struct Paths(Vec<String>);
    impl<B: Backend> ParamVisitor<B> for Paths {
        fn param<const D: usize>(&mut self, path: &str, _: &Param<Tensor<B, D>>) {
            self.0.push(path.to_owned());
        }
    }
    let mut paths = Paths(Vec::new());
    for_each_param::<A, _>(&model, &mut paths);
    let names_one =
        |name: &&String| !paths.0.iter().any(|path| is_named(std::slice::from_ref(name), path));
    let unknown: Vec<String> = names.iter().filter(names_one).cloned().collect();
    if unknown.is_empty() {
        return Ok(set_trainable(model, |path| is_named(names, path)));
    }
    let is_number = |part: &&str| part.parse::<usize>().is_ok();
    let mut available: Vec<String> = paths
        .0
        .iter()
        .flat_map(|path| path.split('.'))
        .filter(|part| !is_number(part) && *part != "weight")
        .map(str::to_owned)
        .collect();
    available.sort_unstable();
    available.dedup();
    Err(UnknownWeights { unknown, available })
}

#[cfg(all(test, feature = "cpu"))]
mod tests {
    use burn_flex::Flex;
    use emberlm_lora::walk::count_params;

    use super::*;
    use crate::WeightForm;
    use crate::base::builtin;
    use crate::trainer::step::Training;

    #[test]
    fn weights_are_selected_by_components_of_their_paths() {
        let base = builtin::base().unwrap();
        let model =
            || base.build::<Training<Flex>>(WeightForm::default(), &Default::default()).unwrap();
        let trained = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|&name| name.into()).collect();
            freeze_except(model(), &names)
                .map(|model| count_params::<Training<Flex>, _>(&model).trainable)
        };
        let (hidden, inner) = (base.config.hidden_size, base.config.intermediate_size);
        let layers = base.config.num_hidden_layers;
        assert_eq!(trained(&["mlp"]).unwrap(), 3 * layers * hidden * inner);
        assert_eq!(trained(&["layers.0.mlp.up_proj"]).unwrap(), hidden * inner);
        assert_eq!(trained(&["model.norm.weight"]).unwrap(), hidden);
        let all = count_params::<Training<Flex>, _>(&model()).total;
        assert_eq!(trained(&[]).unwrap(), all);
        let error = trained(&["mlp", "ml", "layers.99"]).unwrap_err();
        assert_eq!(error.unknown, ["ml", "layers.99"]);
        assert!(error.to_string().contains("gate_proj"), "{error}");
    }
}
