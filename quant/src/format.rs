//! Quantization formats and settings.

use std::fmt;

use clap::ValueEnum;
use serde::Serialize;

/// The format of a quantized weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum QuantFormat {
    /// 4 bits: the quantiles of a normal distribution (Dettmers et al., 2023, arXiv:2305.14314).
    Nf4,
    /// 4 bits: sign, two bits of exponent, one of mantissa, as in bitsandbytes.
    Fp4,
    /// 8 bits: an integer from -127 to 127, one scale per row (Dettmers et al., 2022, arXiv:2208.07339).
    Int8,
}

/// NF4's values by code.
const NF4: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// FP4's values by code. Codes 0 and 8 are both zero.
const FP4: [f32; 16] = {
    let twelfths = [0.0, 0.0625, 8.0, 12.0, 4.0, 6.0, 2.0, 3.0];
    let mut values = [0.0; 16];
    let mut i = 0;
    while i < 8 {
        values[i] = twelfths[i] / 12.0;
        values[i + 8] = if i == 0 { 0.0 } else { -twelfths[i] / 12.0 };
        i += 1;
    }
    values
};

impl QuantFormat {
    /// Every format.
    pub const ALL: [Self; 3] = [Self::Nf4, Self::Fp4, Self::Int8];

    /// Its name in configurations, and in bitsandbytes' `quant_type`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nf4 => "nf4",
            Self::Fp4 => "fp4",
            Self::Int8 => "int8",
        }
    }

    /// Bits per code.
    pub fn bits(self) -> usize {
        match self {
            Self::Nf4 | Self::Fp4 => 4,
            Self::Int8 => 8,
        }
    }

    /// The 16 values of a 4-bit format by code; `None` for int8, whose codes are their own values.
    pub fn four_bit_values(self) -> Option<&'static [f32; 16]> {
        match self {
            Self::Nf4 => Some(&NF4),
            Self::Fp4 => Some(&FP4),
            Self::Int8 => None,
        }
    }

    /// Factor on code times scale: int8 scales are the rows' largest magnitudes, which code 127 represents.
    pub fn unit(self) -> f32 {
        match self {
            Self::Nf4 | Self::Fp4 => 1.0,
            // bitsandbytes' constant for 1 / 127.
            Self::Int8 => 7.874_016e-3,
        }
    }

    /// The value of each code before scaling, indexed by the code as an unsigned number.
    pub fn values(self) -> Vec<f32> {
        match self.four_bit_values() {
            Some(values) => values.to_vec(),
            None => (0..=u8::MAX).map(|code| f32::from(code.cast_signed())).collect(),
        }
    }
}

impl fmt::Display for QuantFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// How to quantize a dense model's linear layers. The head, embeddings and norms always stay dense.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quantization {
    /// The format of the weights.
    pub format: QuantFormat,
    /// Whether the scales of a 4-bit weight are quantized too, to 8 bits (arXiv:2305.14314, section 3). No effect on
    /// int8.
    pub double_quant: bool,
    /// Linear layers that stay dense: full names, or dot-separated parts of them, such as `down_proj` or `layers.0`.
    pub skip_modules: Vec<String>,
}

impl Quantization {
    /// Every layer, with double quantization.
    pub fn new(format: QuantFormat) -> Self {
        Self { format, double_quant: true, skip_modules: Vec::new() }
    }

    /// Whether the layer of this name (without `.weight`) stays dense.
    pub fn skips(&self, name: &str) -> bool {
        let dotted = format!(".{name}.");
        self.skip_modules.iter().any(|skip| dotted.contains(&format!(".{skip}.")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_is_skipped_by_complete_parts_of_its_name() {
        let skip_modules = vec!["layers.1".into(), "down_proj".into()];
        let quantization = Quantization { skip_modules, ..Quantization::new(QuantFormat::Nf4) };
        assert!(quantization.skips("model.layers.1.self_attn.q_proj"));
        assert!(quantization.skips("model.layers.0.mlp.down_proj"));
        assert!(!quantization.skips("model.layers.11.self_attn.q_proj"));
        assert!(!quantization.skips("model.layers.0.mlp.up_proj"));
    }
}
