//! Law 2: autodiff agrees with finite differences in f64, for the operations and for a whole model.

use burn::tensor::{DType, Tensor, TensorData};
use emberlm::Training;
use emberlm::trainer::step::Recompute;
use emberlm::trainer::step::loss_sum;
use emberlm_data::Batch;
use emberlm_lora::walk::{ParamMapper, map_params, set_trainable};
use emberlm_lora::{LoraConfig, inject};
use emberlm_model::{CausalLm, ModelConfig, random};
use emberlm_tests::values;

use crate::support::{golden_batch, mean_loss_and_grads};

type F64 = burn_ndarray::NdArray<f64>;

/// Adds `by` to element `element` of the parameter `name`.
fn nudged(model: CausalLm<F64>, name: &str, element: usize, by: f64) -> CausalLm<F64> {
    struct Nudge<'a>(&'a str, usize, f64);
    impl ParamMapper<F64> for Nudge<'_> {
        fn map<const D: usize>(
            &mut self,
            name: &str,
            param: burn::module::Param<Tensor<F64, D>>,
        ) -> burn::module::Param<Tensor<F64, D>> {
            if name != self.0 {
                return param;
            }
            param.map(|tensor| {
                let dims = tensor.dims();
                let mut values: Vec<f64> = tensor.into_data().iter::<f64>().collect();
                values[self.1] += self.2;
                let data = TensorData::new(values, dims);
                Tensor::from_data(data, (&Default::default(), DType::F64))
            })
        }
    }
    map_params(model, &mut Nudge(name, element, by))
}

fn check(
    config: &ModelConfig,
    model: CausalLm<Training<F64>>,
    batch: &Batch,
    recompute: Recompute,
) {
    use burn::module::AutodiffModule;
    let count = batch.targets.len() as f64;
    let (_, gradients) = mean_loss_and_grads(&model, config, batch, recompute);
    let plain = model.valid();
    let mut checked = 0;
    for (name, gradient) in gradients.iter() {
        let gradient = values(gradient.value.clone());
        // The element with the greatest gradient and one in the middle.
        let greatest =
            (0..gradient.len()).max_by(|&a, &b| gradient[a].abs().total_cmp(&gradient[b].abs()));
        for element in [greatest.unwrap(), gradient.len() / 2] {
            let h = 1e-5;
            let loss =
                |by| loss_sum(&nudged(plain.clone(), name, element, by), config, batch) / count;
            let difference = (loss(h) - loss(-h)) / (2.0 * h);
            let error = (difference - gradient[element]).abs();
            assert!(
                error <= 1e-6 * gradient[greatest.unwrap()].abs() + 1e-9,
                "{name}[{element}], {recompute}: autodiff {}, differences {difference}",
                gradient[element]
            );
            checked += 1;
        }
    }
    assert!(checked > 20, "{checked}");
}

fn small(name: &str) -> (ModelConfig, Batch) {
    let path = emberlm_tests::golden_path(&format!("models/{name}/config.json"));
    let mut config = ModelConfig::read(&path).unwrap();
    config.num_hidden_layers = 2;
    config.sliding_windows.truncate(2);
    // Large enough that no gradient drowns.
    config.initializer_range = 0.3;
    (config, golden_batch(name).1)
}

#[test]
fn a_whole_model_in_f64() {
    for name in ["llama-tied-bias", "qwen2"] {
        let (config, batch) = small(name);
        let model =
            set_trainable(random::<Training<F64>>(&config, 3, &Default::default()), |_| true);
        check(&config, model, &batch, Recompute::Selective);
    }
}

#[test]
fn soft_caps_in_f64() {
    let (mut config, batch) = small("llama");
    (config.attention_soft_cap, config.logit_soft_cap) = (Some(0.8), Some(2.0));
    for recompute in [Recompute::Selective, Recompute::Block] {
        let model =
            set_trainable(random::<Training<F64>>(&config, 3, &Default::default()), |_| true);
        check(&config, model, &batch, recompute);
    }
}

#[test]
fn adapters_and_a_sliding_window_in_f64() {
    let (mut config, batch) = small("llama");
    config.sliding_windows = vec![Some(5), None];
    let mut model = random::<Training<F64>>(&config, 3, &Default::default());
    let lora = LoraConfig { r: 3, alpha: 5.0, ..LoraConfig::default() };
    inject(model.linears_mut(), &lora, 1, &Default::default()).unwrap();
    for named in model.linears_mut() {
        if let Some(adapter) = &mut named.linear.adapter {
            adapter.lora_b = adapter.lora_b.clone().map(|b| (b + 0.05).detach().require_grad());
        }
    }
    check(&config, model, &batch, Recompute::Block);
}
