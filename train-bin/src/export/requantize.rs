//! Merging adapters into a quantized model that stays quantized, and how much of them survives.

use emberlm_lora::NamedLinear;
use emberlm_model::CausalLm;
use emberlm_quant::{
    QuantBackend, Quantization, Quantized, QuantizedMatrix, QuantizedScales, Weight,
};
use serde::Serialize;

/// How much of a layer's delta is left after its weight was requantized.
///
/// With Δ the delta and c the change from the base's weight to the new one, both as the model computes with them, c is
/// `survives · Δ` plus a rest orthogonal to it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Survival {
    /// The layer.
    pub module: String,
    /// ‖Δ‖, Frobenius.
    pub delta_norm: f64,
    /// ⟨c, Δ⟩ / ‖Δ‖²: 1: all, 0: nothing. `None` if the delta is zero.
    pub survives: Option<f64>,
    /// The norm of the rest, divided by ‖Δ‖. `None` if the delta is zero.
    pub noise: Option<f64>,
}

impl Survival {
    /// Several layers taken as one vector.
    pub fn together<'a>(module: &str, parts: impl IntoIterator<Item = &'a Self>) -> Self {
        let parts: Vec<Parts> = parts.into_iter().map(Parts::of).collect();
        let delta: f64 = parts.iter().map(|part| part.delta).sum();
        let along: f64 = parts.iter().map(|part| part.change_on_delta).sum();
        // ‖c − survives · Δ‖², from each layer's share and rest.
        let rest = parts.iter().filter(|part| part.delta > 0.0).map(|part| {
            part.rest + (part.change_on_delta / part.delta - along / delta).powi(2) * part.delta
        });
        Self::new(module, delta, along, rest.sum())
    }

    fn new(module: &str, delta: f64, change_on_delta: f64, rest: f64) -> Self {
        let by_delta = |value: f64| (delta > 0.0).then(|| value / delta);
        Self {
            module: module.into(),
            delta_norm: delta.sqrt(),
            survives: by_delta(change_on_delta),
            noise: by_delta(rest).map(f64::sqrt),
        }
    }
}

/// ‖Δ‖², ⟨c, Δ⟩, and the square of the rest.
struct Parts {
    delta: f64,
    change_on_delta: f64,
    rest: f64,
}

impl Parts {
    fn of(survival: &Survival) -> Self {
        let delta = survival.delta_norm.powi(2);
        Self {
            delta,
            change_on_delta: survival.survives.unwrap_or(0.0) * delta,
            rest: survival.noise.unwrap_or(0.0).powi(2) * delta,
        }
    }
}

/// Merges every adapter into its layer; quantized weights are requantized in the same format. Layers without an adapter
/// keep their bytes.
pub fn requantize<B: QuantBackend>(mut model: CausalLm<B>) -> (CausalLm<B>, Vec<Survival>) {
    let device = model.device();
    model = model.merge_tokens();
    let mut survivals = Vec::new();
    for NamedLinear { name, linear, .. } in model.linears_mut() {
        let Some(adapter) = &linear.adapter else { continue };
        let host = |tensor: burn::tensor::Tensor<B, 2>| -> Vec<f32> {
            tensor.into_data().iter::<f32>().collect()
        };
        let (delta, merged) = (host(adapter.delta()), linear.merged_weight());
        let before = host(linear.weight.to_dense());
        let weight = match &linear.weight {
            Weight::Dense(_) => Weight::dense(merged),
            Weight::Quantized(weight) => {
                let double_quant = matches!(weight.scales, QuantizedScales::Nested(_));
                let quantization =
                    Quantization { double_quant, ..Quantization::new(weight.format()) };
                let matrix = QuantizedMatrix::quantize(&host(merged), weight.dims(), &quantization);
                Weight::Quantized(Quantized::new(matrix, &device))
            }
        };
        survivals.push(survival(&name, &before, &delta, &host(weight.to_dense())));
        linear.weight = weight;
        linear.adapter = None;
    }
    (model, survivals)
}

fn survival(name: &str, before: &[f32], delta: &[f32], after: &[f32]) -> Survival {
    let (mut squares, mut along, mut change_squares) = (0.0, 0.0, 0.0);
    for ((&before, &delta), &after) in before.iter().zip(delta).zip(after) {
        let (delta, change) = (f64::from(delta), f64::from(after) - f64::from(before));
        squares += delta * delta;
        along += change * delta;
        change_squares += change * change;
    }
    let rest = if squares > 0.0 { change_squares - along * along / squares } else { 0.0 };
    // If the change is parallel to the delta, rounding may give a negative rest.
    Survival::new(name, squares, along, rest.max(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_and_rest_are_those_of_the_definition() {
        let before = [1.0, 1.0, 1.0, 1.0];
        let delta = [0.0, 2.0, 0.0, 0.0];
        // Half of the delta, and 3 orthogonal to it.
        let after = [4.0, 2.0, 1.0, 1.0];
        let found = survival("a", &before, &delta, &after);
        assert_eq!((found.delta_norm, found.survives), (2.0, Some(0.5)));
        assert_eq!(found.noise, Some(1.5));
        let all = survival("b", &before, &delta, &[1.0, 3.0, 1.0, 1.0]);
        assert_eq!((all.survives, all.noise), (Some(1.0), Some(0.0)));
        let none = survival("c", &before, &[0.0; 4], &after);
        assert_eq!((none.delta_norm, none.survives, none.noise), (0.0, None, None));
    }

    #[test]
    fn layers_together_are_one_long_layer() {
        let (before, delta) = ([0.5, -1.0, 0.25, 2.0], [0.5, 0.1, -0.3, 0.2]);
        let after = [0.75, -1.0, 0.0, 2.5];
        let whole = survival("all", &before, &delta, &after);
        let halves = [0..2, 2..4].map(|range: std::ops::Range<usize>| {
            survival("half", &before[range.clone()], &delta[range.clone()], &after[range])
        });
        let together = Survival::together("all", &halves);
        assert!((together.delta_norm - whole.delta_norm).abs() < 1e-9);
        assert!((together.survives.unwrap() - whole.survives.unwrap()).abs() < 1e-9);
        assert!((together.noise.unwrap() - whole.noise.unwrap()).abs() < 1e-9);
    }
}
