//! Safetensors files, written tensor by tensor and atomically.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io;
use std::path::Path;

use clap::ValueEnum;
use half::{bf16, f16};
use safetensors::tensor::{Dtype, View};
use serde::Serialize;

use crate::TensorFileError;
use crate::atomic_file::replace_atomically;

/// The float types of stored weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FloatDtype {
    /// 32-bit float.
    #[default]
    F32,
    /// 16-bit float with the range of f32.
    Bf16,
    /// 16-bit IEEE float.
    F16,
}

impl FloatDtype {
    /// The name that `torch_dtype` in a `config.json` uses.
    pub fn torch_name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::F16 => "float16",
            Self::Bf16 => "bfloat16",
        }
    }

    /// The name that configurations use.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }

    /// Bytes per element.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// Little-endian bytes of values, rounded to this type.
    pub fn encode(self, values: &[f32]) -> Vec<u8> {
        match self {
            Self::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            Self::F16 => values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect(),
            Self::Bf16 => values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect(),
        }
    }

    /// The type of a safetensors entry, if it is a supported float.
    pub fn of_entry(dtype: Dtype) -> Option<Self> {
        match dtype {
            Dtype::F32 => Some(Self::F32),
            Dtype::F16 => Some(Self::F16),
            Dtype::BF16 => Some(Self::Bf16),
            _ => None,
        }
    }
}

/// A float tensor to write. Its values are computed on demand, so that only one tensor at a time is copied.
pub struct NamedTensor<'a> {
    /// The key in the file.
    pub name: String,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Returns the row-major values.
    pub values: Box<dyn Fn() -> Vec<f32> + 'a>,
}

/// The element types that can be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoredDtype {
    /// A float.
    Float(FloatDtype),
    /// A float of 64 bits.
    F64,
    /// Bytes.
    U8,
    /// Signed bytes.
    I8,
}

impl StoredDtype {
    /// Bytes per element.
    pub fn bytes(self) -> usize {
        match self {
            Self::Float(dtype) => dtype.bytes(),
            Self::F64 => 8,
            Self::U8 | Self::I8 => 1,
        }
    }
}

/// A tensor of any type to write. As with [`NamedTensor`], its bytes are computed on demand.
pub struct StoredTensor<'a> {
    /// The key in the file.
    pub name: String,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Element type.
    pub dtype: StoredDtype,
    /// Returns the elements' little-endian bytes, row-major.
    pub bytes: Box<dyn Fn() -> Vec<u8> + 'a>,
}

impl<'a> StoredTensor<'a> {
    /// A float tensor, rounded to `dtype`.
    pub fn float(tensor: NamedTensor<'a>, dtype: FloatDtype) -> Self {
        let NamedTensor { name, shape, values } = tensor;
        let bytes = Box::new(move || dtype.encode(&values()));
        Self { name, shape, dtype: StoredDtype::Float(dtype), bytes }
    }

    /// Its bytes in the file.
    pub fn size(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.bytes()
    }
}

impl View for &StoredTensor<'_> {
    fn dtype(&self) -> Dtype {
        match self.dtype {
            StoredDtype::Float(FloatDtype::F32) => Dtype::F32,
            StoredDtype::Float(FloatDtype::F16) => Dtype::F16,
            StoredDtype::Float(FloatDtype::Bf16) => Dtype::BF16,
            StoredDtype::F64 => Dtype::F64,
            StoredDtype::U8 => Dtype::U8,
            StoredDtype::I8 => Dtype::I8,
        }
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        (self.bytes)().into()
    }

    fn data_len(&self) -> usize {
        self.size()
    }
}

/// Writes tensors to a safetensors file, atomically, with the metadata `{"format": "pt"}` that PEFT and transformers expect.
///
/// # Errors
/// [`TensorFileError::Io`].
pub fn write_stored(path: &Path, tensors: &[StoredTensor<'_>]) -> Result<(), TensorFileError> {
    write_stored_with(path, tensors, None)
}

/// As [`write_stored`], with one more metadata entry (name and text), which other programs ignore.
///
/// # Errors
/// [`TensorFileError::Io`].
pub fn write_stored_with(
    path: &Path,
    tensors: &[StoredTensor<'_>],
    entry: Option<(&str, String)>,
) -> Result<(), TensorFileError> {
    let entries = std::iter::once(("format", "pt".to_string())).chain(entry);
    let entries: Vec<(String, String)> = entries.map(|(name, text)| (name.into(), text)).collect();
    // Metadata is written in the map's random order. Maps are drawn until one is sorted, so that equal tensors give
    // equal files.
    let metadata = loop {
        let metadata: HashMap<String, String> = entries.iter().cloned().collect();
        if metadata.keys().is_sorted() {
            break metadata;
        }
    };
    let views = tensors.iter().map(|tensor| (&tensor.name, tensor));
    replace_atomically(path, |temporary| {
        safetensors::serialize_to_file(views, Some(metadata), temporary)
            .map_err(|e| io::Error::other(e.to_string()))
    })
    .map_err(|cause| TensorFileError::Io { path: path.into(), cause })
}

/// As [`write_stored`], for float tensors, all rounded to one type.
///
/// # Errors
/// [`TensorFileError::Io`].
pub fn write_tensors(
    path: &Path,
    tensors: &[NamedTensor<'_>],
    dtype: FloatDtype,
) -> Result<(), TensorFileError> {
    let stored: Vec<StoredTensor<'_>> = tensors
        .iter()
        .map(|NamedTensor { name, shape, values }| StoredTensor {
            name: name.clone(),
            shape: shape.clone(),
            dtype: StoredDtype::Float(dtype),
            bytes: Box::new(move || dtype.encode(&values())),
        })
        .collect();
    write_stored(path, &stored)
}
