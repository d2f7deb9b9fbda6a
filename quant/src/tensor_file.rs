//! Safetensors files: memory-mapped, checked before use, read tensor by tensor.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use memmap2::Mmap;
use safetensors::tensor::{Dtype, SafeTensors, View};

use crate::atomic_file::replace_atomically;

/// Why a safetensors file can't be read or written.
#[derive(Debug, thiserror::Error)]
pub enum TensorFileError {
    /// The file system refused.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Not a safetensors file, or a damaged one.
    #[error(
        "{path}: not a whole safetensors file ({reason}; it has {bytes} bytes). Fetch or copy it again: it was probably cut off, or is a Git LFS pointer"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
        /// Its length.
        bytes: usize,
    },
    /// A tensor that the file lacks.
    #[error("{path}: no tensor `{name}`")]
    NoSuchTensor {
        /// The file.
        path: PathBuf,
        /// The tensor's key.
        name: String,
    },
    /// A tensor whose element type isn't a float that can be read.
    #[error("{path}: tensor `{name}` has dtype {found}, expected F32, F16 or BF16")]
    WrongDtype {
        /// The file.
        path: PathBuf,
        /// The tensor's key.
        name: String,
        /// The dtype it has.
        found: String,
    },
    /// A NaN or an infinity among the values.
    #[error(
        "{path}: tensor `{name}` holds {value} at element {index}; a model with such a weight can only compute NaN. Take an undamaged copy of the file"
    )]
    NotFinite {
        /// The file.
        path: PathBuf,
        /// The tensor's key.
        name: String,
        /// Position in row-major order.
        index: usize,
        /// The value found.
        value: f32,
    },
}

enum Bytes {
    Mapped(Mmap),
    Static(&'static [u8]),
}

impl Bytes {
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Static(bytes) => bytes,
        }
    }
}

/// Where one tensor lies in a file.
#[derive(Debug, Clone)]
pub struct TensorEntry {
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    start: usize,
    end: usize,
}

/// An open safetensors file. Only the tensors that are asked for are read.
pub struct TensorFile {
    path: PathBuf,
    bytes: Bytes,
    entries: BTreeMap<String, TensorEntry>,
}

impl TensorFile {
    /// Maps the file and checks its header against its length.
    ///
    /// # Errors
    /// [`TensorFileError::Io`] and [`TensorFileError::Damaged`].
    pub fn open(path: &Path) -> Result<Self, TensorFileError> {
        let io = |source| TensorFileError::Io { path: path.into(), source };
        let file = File::open(path).map_err(io)?;
        // SAFETY: the map is only read; a file that another program cuts short while it is mapped is outside
        // of what any reader of mapped files can guard against.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        Self::parse(path.into(), Bytes::Mapped(map))
    }

    /// A file that lies in the program itself; `name` stands for its path in messages.
    ///
    /// # Errors
    /// [`TensorFileError::Damaged`].
    pub fn from_static(name: &str, bytes: &'static [u8]) -> Result<Self, TensorFileError> {
        Self::parse(name.into(), Bytes::Static(bytes))
    }

    fn parse(path: PathBuf, bytes: Bytes) -> Result<Self, TensorFileError> {
        let whole = bytes.as_slice();
        let entries = SafeTensors::deserialize(whole)
            .map(|tensors| {
                let base = whole.as_ptr() as usize;
                tensors
                    .iter()
                    .map(|(name, view)| {
                        let start = view.data().as_ptr() as usize - base;
                        let end = start + view.data().len();
                        let shape = view.shape().to_vec();
                        (name.to_string(), TensorEntry { dtype: view.dtype(), shape, start, end })
                    })
                    .collect()
            })
            .map_err(|error| TensorFileError::Damaged {
                path: path.clone(),
                reason: error.to_string(),
                bytes: whole.len(),
            })?;
        Ok(Self { path, bytes, entries })
    }

    /// The file's path (or the name given to [`from_static`](Self::from_static)).
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Every tensor, by key, sorted.
    pub fn entries(&self) -> &BTreeMap<String, TensorEntry> {
        &self.entries
    }

    /// The values of a float tensor as f32, row-major. F16 and BF16 widen exactly.
    ///
    /// # Errors
    /// [`TensorFileError::NoSuchTensor`], [`TensorFileError::WrongDtype`], [`TensorFileError::NotFinite`].
    pub fn read_f32(&self, name: &str) -> Result<Vec<f32>, TensorFileError> {
        let entry = self.entries.get(name).ok_or_else(|| TensorFileError::NoSuchTensor {
            path: self.path.clone(),
            name: name.into(),
        })?;
        let bytes = &self.bytes.as_slice()[entry.start..entry.end];
        let values: Vec<f32> = match entry.dtype {
            Dtype::F32 => widen(bytes, f32::from_le_bytes),
            Dtype::F16 => widen(bytes, |b| f16::from_le_bytes(b).to_f32()),
            Dtype::BF16 => widen(bytes, |b| bf16::from_le_bytes(b).to_f32()),
            other => {
                return Err(TensorFileError::WrongDtype {
                    path: self.path.clone(),
                    name: name.into(),
                    found: format!("{other:?}"),
                });
            }
        };
        match values.iter().position(|v| !v.is_finite()) {
            None => Ok(values),
            Some(index) => Err(TensorFileError::NotFinite {
                path: self.path.clone(),
                name: name.into(),
                index,
                value: values[index],
            }),
        }
    }

    /// The raw little-endian bytes of an integer tensor of dtype I64, as i64.
    ///
    /// # Errors
    /// [`TensorFileError::NoSuchTensor`], [`TensorFileError::WrongDtype`].
    pub fn read_i64(&self, name: &str) -> Result<Vec<i64>, TensorFileError> {
        let entry = self.entries.get(name).ok_or_else(|| TensorFileError::NoSuchTensor {
            path: self.path.clone(),
            name: name.into(),
        })?;
        if entry.dtype != Dtype::I64 {
            return Err(TensorFileError::WrongDtype {
                path: self.path.clone(),
                name: name.into(),
                found: format!("{:?}", entry.dtype),
            });
        }
        Ok(widen(&self.bytes.as_slice()[entry.start..entry.end], i64::from_le_bytes))
    }
}

fn widen<const N: usize, T>(bytes: &[u8], convert: impl Fn([u8; N]) -> T) -> Vec<T> {
    let (elements, _) = bytes.as_chunks::<N>();
    elements.iter().map(|&element| convert(element)).collect()
}

/// The float types that weights are written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FloatDtype {
    /// 32 bits.
    F32,
    /// 16 bits, IEEE half.
    F16,
    /// 16 bits, the upper half of an f32.
    Bf16,
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

    /// Bytes an element.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// The type of a safetensors entry, if it is a float that can be written again.
    pub fn of_entry(dtype: Dtype) -> Option<Self> {
        match dtype {
            Dtype::F32 => Some(Self::F32),
            Dtype::F16 => Some(Self::F16),
            Dtype::BF16 => Some(Self::Bf16),
            _ => None,
        }
    }
}

/// A tensor to be written. Its values are asked for when its turn comes, so that one tensor at a time is held twice.
pub struct NamedTensor<'a> {
    /// The key in the file.
    pub name: String,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Gives the row-major values.
    pub values: Box<dyn Fn() -> Vec<f32> + 'a>,
}

struct Encoded<'a> {
    tensor: &'a NamedTensor<'a>,
    dtype: FloatDtype,
}

impl View for Encoded<'_> {
    fn dtype(&self) -> Dtype {
        match self.dtype {
            FloatDtype::F32 => Dtype::F32,
            FloatDtype::F16 => Dtype::F16,
            FloatDtype::Bf16 => Dtype::BF16,
        }
    }

    fn shape(&self) -> &[usize] {
        &self.tensor.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        encode(&(self.tensor.values)(), self.dtype).into()
    }

    fn data_len(&self) -> usize {
        self.tensor.shape.iter().product::<usize>() * self.dtype.bytes()
    }
}

/// Writes tensors to a safetensors file, atomically, with the metadata `{"format": "pt"}` that PEFT and transformers expect.
///
/// # Errors
/// [`TensorFileError::Io`].
pub fn write_tensors(
    path: &Path,
    tensors: &[NamedTensor<'_>],
    dtype: FloatDtype,
) -> Result<(), TensorFileError> {
    let metadata = HashMap::from([("format".to_string(), "pt".to_string())]);
    let views = tensors.iter().map(|tensor| (&tensor.name, Encoded { tensor, dtype }));
    replace_atomically(path, |temporary| {
        safetensors::serialize_to_file(views, Some(metadata), temporary)
            .map_err(|e| io::Error::other(e.to_string()))
    })
    .map_err(|source| TensorFileError::Io { path: path.into(), source })
}

fn encode(values: &[f32], dtype: FloatDtype) -> Vec<u8> {
    match dtype {
        FloatDtype::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        FloatDtype::F16 => values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect(),
        FloatDtype::Bf16 => values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(path: &Path, values: &[f32], dtype: FloatDtype) {
        let shape = vec![values.len()];
        let tensor = NamedTensor { name: "w".into(), shape, values: Box::new(|| values.to_vec()) };
        write_tensors(path, &[tensor], dtype).unwrap();
    }

    #[test]
    fn values_survive_every_dtype_that_can_hold_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.safetensors");
        let values = [0.0, -1.5, 0.25, 96.0];
        for dtype in [FloatDtype::F32, FloatDtype::F16, FloatDtype::Bf16] {
            sample(&path, &values, dtype);
            assert_eq!(TensorFile::open(&path).unwrap().read_f32("w").unwrap(), values);
        }
    }

    #[test]
    fn a_file_cut_short_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.safetensors");
        sample(&path, &[1.0; 64], FloatDtype::F32);
        let whole = std::fs::read(&path).unwrap();
        for keep in [0, 4, 20, whole.len() - 1] {
            std::fs::write(&path, &whole[..keep]).unwrap();
            let error = TensorFile::open(&path).err().expect("a cut file must be refused");
            assert!(error.to_string().contains("t.safetensors"), "{error}");
        }
    }

    #[test]
    fn a_nan_is_named_with_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.safetensors");
        sample(&path, &[1.0, f32::NAN], FloatDtype::Bf16);
        let error = TensorFile::open(&path).unwrap().read_f32("w").unwrap_err().to_string();
        assert!(error.contains("`w`") && error.contains("element 1"), "{error}");
    }
}
