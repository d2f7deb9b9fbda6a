//! The linear layers of a block: names, shapes and what each one reads. Loading, LoRA, quantization and the memory
//! estimate take them from here.

/// What a linear layer of a block computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LinearRole {
    /// Attention's queries.
    Query,
    /// Attention's keys.
    Key,
    /// Attention's values.
    Value,
    /// Attention's output.
    Output,
    /// The feed-forward's gate, before the activation.
    Gate,
    /// What the gate is multiplied with.
    Up,
    /// The feed-forward's output.
    Down,
}

/// What a linear layer reads. Layers with the same input share one copy of it for backward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinearInput {
    /// The output of the norm before attention.
    AttentionNorm,
    /// The heads' outputs.
    Attention,
    /// The output of the norm before the feed-forward.
    MlpNorm,
    /// `activation(gate) · up`.
    MlpProduct,
}

impl LinearRole {
    /// All of them, in the order of a block's fields.
    pub const ALL: [Self; 7] =
        [Self::Query, Self::Key, Self::Value, Self::Output, Self::Gate, Self::Up, Self::Down];

    /// The path within the block.
    pub fn path(self) -> &'static str {
        match self {
            Self::Query => "self_attn.q_proj",
            Self::Key => "self_attn.k_proj",
            Self::Value => "self_attn.v_proj",
            Self::Output => "self_attn.o_proj",
            Self::Gate => "mlp.gate_proj",
            Self::Up => "mlp.up_proj",
            Self::Down => "mlp.down_proj",
        }
    }

    /// The path within the model, in block number `block`.
    pub fn path_in(self, block: usize) -> String {
        in_block(block, self.path())
    }

    /// The layer at this path of a model, or to which the parameter at this path belongs.
    pub fn at_path(path: &str) -> Option<Self> {
        let (_, path) = path.strip_prefix("model.layers.")?.split_once('.')?;
        let is_part = |rest: &str| rest.is_empty() || rest.starts_with('.');
        Self::ALL.into_iter().find(|role| path.strip_prefix(role.path()).is_some_and(is_part))
    }

    /// What it reads.
    pub fn input(self) -> LinearInput {
        match self {
            Self::Query | Self::Key | Self::Value => LinearInput::AttentionNorm,
            Self::Output => LinearInput::Attention,
            Self::Gate | Self::Up => LinearInput::MlpNorm,
            Self::Down => LinearInput::MlpProduct,
        }
    }
}

/// A linear layer of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockLinear {
    /// What it computes.
    pub role: LinearRole,
    /// Output features.
    pub d_out: usize,
    /// Input features.
    pub d_in: usize,
    /// Whether it has a bias.
    pub bias: bool,
}

/// The path within the model of `name`, a part of block number `block`.
pub(crate) fn in_block(block: usize, name: &str) -> String {
    format!("model.layers.{block}.{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_gives_its_layer() {
        for role in LinearRole::ALL {
            let path = role.path_in(12);
            for part in ["", ".weight", ".bias", ".adapter.lora_a"] {
                assert_eq!(LinearRole::at_path(&format!("{path}{part}")), Some(role));
            }
            assert_eq!(LinearRole::at_path(&format!("{path}2.weight")), None);
        }
        assert_eq!(LinearRole::at_path("lm_head.weight"), None);
        assert_eq!(LinearRole::at_path("model.layers.0.input_layernorm.weight"), None);
    }
}
