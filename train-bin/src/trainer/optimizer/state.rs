//! An optimizer's state as plain bytes, for checkpoints.
//!
//! A tensor's name is its role, a dot, and the path of its parameter: `exp_avg.model.norm.weight`. Roles have the names of
//! PyTorch and bitsandbytes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor, TensorData};

/// The type of a state tensor's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateDtype {
    /// 32-bit float.
    F32,
    /// 64-bit float: means computed on the host, and tensors of a backend that computes in 64 bits.
    F64,
    /// Bytes: quantized values.
    U8,
}

impl StateDtype {
    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::F32 => 4,
            Self::F64 => 8,
        }
    }
}

impl fmt::Display for StateDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "F32",
            Self::F64 => "F64",
            Self::U8 => "U8",
        })
    }
}

/// A tensor of an optimizer's state, as stored in a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateTensor {
    /// The type of its elements.
    pub dtype: StateDtype,
    /// Its shape. Most are flat: `[elements]`.
    pub shape: Vec<usize>,
    /// Its elements, row-major, little-endian.
    pub bytes: Vec<u8>,
}

/// The state of an optimizer, without its constants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OptimizerState {
    /// The name of the optimizer in `train.optimizer`.
    pub kind: String,
    /// Steps made.
    pub steps: u64,
    /// Tensors by name.
    pub tensors: BTreeMap<String, StateTensor>,
}

/// Why a state does not fit an optimizer or a model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// It belongs to another optimizer (or another way of clipping).
    #[error(
        "the state in the checkpoint is for `{found}`, but the run is configured for `{expected}`. Restore that setting, or start a new run"
    )]
    Kind {
        /// The configured one.
        expected: &'static str,
        /// The state's.
        found: String,
    },
    /// A tensor is missing.
    #[error(
        "`{tensor}` is missing in the optimizer's state. The checkpoint is incomplete; use another one"
    )]
    Missing {
        /// Its name.
        tensor: String,
    },
    /// The optimizer has no such tensor.
    #[error(
        "the optimizer's state contains `{tensor}`, which `{kind}` does not have. The checkpoint is from another version; use another one"
    )]
    Unknown {
        /// Its name.
        tensor: String,
        /// The optimizer.
        kind: &'static str,
    },
    /// A tensor has the wrong type.
    #[error("`{tensor}` of the optimizer's state: expected {expected}, found {found}")]
    Dtype {
        /// Its name.
        tensor: String,
        /// The expected type.
        expected: &'static str,
        /// Its type.
        found: StateDtype,
    },
    /// A tensor has the wrong shape.
    #[error("`{tensor}` of the optimizer's state: expected {expected}, found the shape {found:?}")]
    Shape {
        /// Its name.
        tensor: String,
        /// The expected shape or number of axes.
        expected: String,
        /// Its shape.
        found: Vec<usize>,
    },
    /// A tensor has the wrong number of bytes.
    #[error(
        "`{tensor}` of the optimizer's state: expected {expected} bytes for its shape, found {found}. The checkpoint is damaged; use another one"
    )]
    Bytes {
        /// Its name.
        tensor: String,
        /// Bytes of a tensor of its shape.
        expected: usize,
        /// Its bytes.
        found: usize,
    },
    /// The state has a parameter that is not trained.
    #[error(
        "the optimizer's state has the parameter `{parameter}`, which is not trained here. The checkpoint belongs to another model or to other adapters"
    )]
    NoParameter {
        /// Its path.
        parameter: String,
    },
    /// The state of a parameter has the wrong shape.
    #[error(
        "the optimizer's state for `{parameter}`: expected shape {expected:?}, found {found:?}. The checkpoint belongs to another model or to other adapters"
    )]
    Parameter {
        /// Its path.
        parameter: String,
        /// The parameter's shape.
        expected: Vec<usize>,
        /// The state's.
        found: Vec<usize>,
    },
}

/// A tensor's name.
fn key(role: &str, path: &str) -> String {
    format!("{role}.{path}")
}

impl OptimizerState {
    /// Without tensors.
    pub(crate) fn new(kind: &str, steps: u64) -> Self {
        Self { kind: kind.to_owned(), steps, tensors: BTreeMap::new() }
    }

    /// Adds a float tensor of any shape.
    pub(crate) fn put<B: Backend, const D: usize>(
        &mut self,
        role: &str,
        path: &str,
        tensor: &Tensor<B, D>,
    ) {
        let shape = tensor.dims().to_vec();
        let data = tensor.to_data();
        let (dtype, bytes) = if data.dtype == DType::F64 {
            (StateDtype::F64, data.iter::<f64>().flat_map(f64::to_le_bytes).collect())
        } else {
            (StateDtype::F32, f32_bytes(data))
        };
        self.tensors.insert(key(role, path), StateTensor { dtype, shape, bytes });
    }

    /// Adds floats from the host: `[len]`.
    pub(crate) fn put_f32(&mut self, role: &str, path: &str, values: &[f32]) {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let tensor = StateTensor { dtype: StateDtype::F32, shape: vec![values.len()], bytes };
        self.tensors.insert(key(role, path), tensor);
    }

    /// Adds 64-bit floats from the host: `[len]`.
    pub(crate) fn put_f64(&mut self, role: &str, path: &str, values: &[f64]) {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let tensor = StateTensor { dtype: StateDtype::F64, shape: vec![values.len()], bytes };
        self.tensors.insert(key(role, path), tensor);
    }

    /// Adds bytes: `[len]`.
    pub(crate) fn put_u8(&mut self, role: &str, path: &str, bytes: Vec<u8>) {
        let tensor = StateTensor { dtype: StateDtype::U8, shape: vec![bytes.len()], bytes };
        self.tensors.insert(key(role, path), tensor);
    }
}

fn f32_bytes(data: TensorData) -> Vec<u8> {
    let data = data.convert::<f32>();
    match data.as_slice::<f32>() {
        Ok(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        Err(_) => data.iter::<f32>().flat_map(f32::to_le_bytes).collect(),
    }
}

/// Reads a state tensor by tensor, and checks at the end that none is left.
pub(crate) struct StateReader<'a> {
    kind: &'static str,
    left: BTreeMap<&'a str, &'a StateTensor>,
}

impl<'a> StateReader<'a> {
    /// Reads a state, which must be of `kind`.
    pub(crate) fn new(kind: &'static str, state: &'a OptimizerState) -> Result<Self, StateError> {
        if state.kind != kind {
            return Err(StateError::Kind { expected: kind, found: state.kind.clone() });
        }
        let left = state.tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
        Ok(Self { kind, left })
    }

    /// Paths of the parameters that have a tensor in any of these roles.
    pub(crate) fn paths(&self, roles: &[&str]) -> BTreeSet<&'a str> {
        let path = |name: &&'a str| {
            let (role, path) = name.split_once('.')?;
            roles.contains(&role).then_some(path)
        };
        self.left.keys().filter_map(path).collect()
    }

    /// The shape of a tensor that was not taken yet.
    pub(crate) fn peek(&self, role: &str, path: &str) -> Option<&'a StateTensor> {
        self.left.get(key(role, path).as_str()).copied()
    }

    /// A float tensor on a device; `D`: its number of axes. Its shape must be `shape`, if that is given.
    pub(crate) fn floats<B: Backend, const D: usize>(
        &mut self,
        role: &str,
        path: &str,
        shape: Option<[usize; D]>,
        device: &B::Device,
    ) -> Result<Tensor<B, D>, StateError> {
        let name = key(role, path);
        let tensor = self.take(&name)?;
        has_shape(&name, tensor, shape)?;
        let data = match tensor.dtype {
            StateDtype::F32 => TensorData::new(f32_values(tensor), tensor.shape.clone()),
            StateDtype::F64 => TensorData::new(f64_values(tensor), tensor.shape.clone()),
            found => return Err(StateError::Dtype { tensor: name, expected: "floats", found }),
        };
        let dtype = <B::FloatElem as burn::tensor::Element>::dtype();
        Ok(Tensor::from_data(data.convert_dtype(dtype), (device, dtype)))
    }

    /// Floats on the host: `[len]`.
    pub(crate) fn f32s(
        &mut self,
        role: &str,
        path: &str,
        len: usize,
    ) -> Result<Vec<f32>, StateError> {
        let name = key(role, path);
        let tensor = self.flat(&name, Some(len))?;
        match tensor.dtype {
            StateDtype::F32 => Ok(f32_values(tensor)),
            found => Err(StateError::Dtype { tensor: name, expected: "F32", found }),
        }
    }

    /// 64-bit floats on the host: `[len]`.
    pub(crate) fn f64s(
        &mut self,
        role: &str,
        path: &str,
        len: usize,
    ) -> Result<Vec<f64>, StateError> {
        let name = key(role, path);
        let tensor = self.flat(&name, Some(len))?;
        match tensor.dtype {
            StateDtype::F64 => Ok(f64_values(tensor)),
            found => Err(StateError::Dtype { tensor: name, expected: "F64", found }),
        }
    }

    /// Bytes: `[len]`.
    pub(crate) fn u8s(
        &mut self,
        role: &str,
        path: &str,
        len: Option<usize>,
    ) -> Result<&'a [u8], StateError> {
        let name = key(role, path);
        let tensor = self.flat(&name, len)?;
        match tensor.dtype {
            StateDtype::U8 => Ok(&tensor.bytes),
            found => Err(StateError::Dtype { tensor: name, expected: "U8", found }),
        }
    }

    /// Checks that every tensor was taken.
    pub(crate) fn finish(self) -> Result<(), StateError> {
        match self.left.into_keys().next() {
            None => Ok(()),
            Some(name) => Err(StateError::Unknown { tensor: name.to_owned(), kind: self.kind }),
        }
    }

    fn flat(&mut self, name: &str, len: Option<usize>) -> Result<&'a StateTensor, StateError> {
        let tensor = self.take(name)?;
        has_shape(name, tensor, len.map(|len| [len]))?;
        Ok(tensor)
    }

    /// Takes a tensor and checks its number of bytes.
    fn take(&mut self, name: &str) -> Result<&'a StateTensor, StateError> {
        let missing = || StateError::Missing { tensor: name.to_owned() };
        let tensor = self.left.remove(name).ok_or_else(missing)?;
        let elements = tensor.shape.iter().try_fold(1usize, |n, &axis| n.checked_mul(axis));
        let expected = elements.and_then(|n| n.checked_mul(tensor.dtype.size()));
        let expected = expected.unwrap_or(usize::MAX);
        let found = tensor.bytes.len();
        match expected == found {
            true => Ok(tensor),
            false => Err(StateError::Bytes { tensor: name.to_owned(), expected, found }),
        }
    }
}

/// Checks a tensor's shape, or its number of axes if no shape is given.
fn has_shape<const D: usize>(
    name: &str,
    tensor: &StateTensor,
    shape: Option<[usize; D]>,
) -> Result<(), StateError> {
    let (fits, expected) = match shape {
        Some(shape) => (tensor.shape == shape, format!("the shape {shape:?}")),
        None => (tensor.shape.len() == D, format!("{D} axes")),
    };
    if fits {
        return Ok(());
    }
    let (tensor, found) = (name.to_owned(), tensor.shape.clone());
    Err(StateError::Shape { tensor, expected, found })
}

fn f32_values(tensor: &StateTensor) -> Vec<f32> {
    let (values, _) = tensor.bytes.as_chunks::<4>();
    values.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

fn f64_values(tensor: &StateTensor) -> Vec<f64> {
    let (values, _) = tensor.bytes.as_chunks::<8>();
    values.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect()
}
