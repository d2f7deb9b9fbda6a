//! The trainable parameters of an adapter. Optimizer groups, the memory estimate, gradient checks and PEFT files read
//! this list; a new kind of adapter adds its own.

/// The sizes and constants of a layer's adapter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdapterShape {
    /// Output features of the layer.
    pub d_out: usize,
    /// Input features of the layer.
    pub d_in: usize,
    /// Rank.
    pub r: usize,
    /// Factor on the delta.
    pub scaling: f64,
    /// Dropout probability of the delta's input.
    pub dropout: f64,
}

/// What a parameter does in an adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdapterRole {
    /// The factor A, applied to the layer's input.
    A,
    /// The factor B, which gives the layer's output. It is 0 in a fresh adapter, and while it is 0, so is A's gradient.
    B,
}

/// A trainable parameter of an adapter.
#[derive(Debug, Clone, Copy)]
pub struct AdapterParam {
    /// Its field in [`Adapter`](crate::Adapter): the last part of its path in a model.
    pub name: &'static str,
    /// The end of its key in a PEFT file, after the layer's name.
    pub peft_name: &'static str,
    /// What it does.
    pub role: AdapterRole,
    shape: fn(&AdapterShape) -> Vec<usize>,
}

/// LoRA's parameters, in the order of [`Adapter`](crate::Adapter)'s fields.
const LORA: &[AdapterParam] = &[
    AdapterParam {
        name: "lora_a",
        peft_name: "lora_A.weight",
        role: AdapterRole::A,
        shape: |adapter| vec![adapter.r, adapter.d_in],
    },
    AdapterParam {
        name: "lora_b",
        peft_name: "lora_B.weight",
        role: AdapterRole::B,
        shape: |adapter| vec![adapter.d_out, adapter.r],
    },
];

impl AdapterParam {
    /// The parameter at this path of a model; `None` if it belongs to no adapter.
    pub fn at_path(path: &str) -> Option<&'static Self> {
        let name = path.rsplit('.').next();
        LORA.iter().find(|param| Some(param.name) == name)
    }

    /// Its shape in an adapter.
    pub fn shape(&self, adapter: &AdapterShape) -> Vec<usize> {
        (self.shape)(adapter)
    }
}

impl AdapterShape {
    /// The adapter's parameters, in the order of its fields.
    pub fn params(&self) -> &'static [AdapterParam] {
        LORA
    }

    /// Numbers in all parameters together.
    pub fn elements(&self) -> usize {
        self.param_elements().sum()
    }

    /// Numbers in each parameter, in the order of [`params`](Self::params).
    pub fn param_elements(&self) -> impl Iterator<Item = usize> {
        self.params().iter().map(|param| param.shape(self).iter().product())
    }
}
