//! Safetensors files: memory-mapped, checked before use, read tensor by tensor. `tensor_writer` writes them.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use memmap2::Mmap;
use safetensors::tensor::{Dtype, SafeTensors};

pub use crate::tensor_writer::{
    FloatDtype, NamedTensor, StoredDtype, StoredTensor, write_stored, write_stored_with,
    write_tensors,
};

/// Why a safetensors file can't be read or written.
#[derive(Debug, thiserror::Error)]
pub enum TensorFileError {
    /// A file system error.
    #[error("{path}: {cause}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// An invalid or damaged file.
    #[error(
        "{path}: incomplete or invalid safetensors file ({reason}; {bytes} bytes). Download or copy it again: it was probably truncated, or is a Git LFS pointer"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
        /// Its length.
        bytes: usize,
    },
    /// A missing tensor.
    #[error("{path}: no tensor `{name}`")]
    NoSuchTensor {
        /// The file.
        path: PathBuf,
        /// The tensor's key.
        name: String,
    },
    /// A tensor with another element type than expected.
    #[error("{path}: tensor `{name}` has dtype {found}, expected {expected}")]
    WrongDtype {
        /// The file.
        path: PathBuf,
        /// The tensor's key.
        name: String,
        /// The expected dtypes.
        expected: &'static str,
        /// The dtype found.
        found: String,
    },
    /// A NaN or an infinity among the values.
    #[error(
        "{path}: tensor `{name}` contains {value} at element {index}; a model with such a weight only computes NaN. Get an undamaged copy of the file"
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

    /// Releases the pages of a mapped range after it was read, because they would count in addition to the tensor's
    /// values. If it is read again, the system loads it again.
    fn release(&self, start: usize, end: usize) {
        #[cfg(unix)]
        if let Self::Mapped(map) = self
            && start < end
        {
            // SAFETY: the map is of a file and only read, so the dropped pages can be read again from the file. If the
            // system refuses, the pages stay in memory.
            let _ = unsafe {
                map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, end - start)
            };
        }
    }
}

/// A tensor's type, shape and position in a file.
#[derive(Debug, Clone)]
pub struct TensorEntry {
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    start: usize,
    end: usize,
}

/// An open safetensors file. Tensors are read on demand.
pub struct TensorFile {
    path: PathBuf,
    bytes: Bytes,
    entries: BTreeMap<String, TensorEntry>,
    metadata: HashMap<String, String>,
}

impl TensorFile {
    /// Maps the file and checks its header against its length.
    ///
    /// # Errors
    /// [`TensorFileError::Io`] and [`TensorFileError::Damaged`].
    pub fn open(path: &Path) -> Result<Self, TensorFileError> {
        let io = |cause| TensorFileError::Io { path: path.into(), cause };
        let file = File::open(path).map_err(io)?;
        // SAFETY: the map is only read; no reader of mapped files can guard against another program truncating the
        // file.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        Self::parse(path.into(), Bytes::Mapped(map))
    }

    /// A file embedded in the program; `name` replaces its path in messages.
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
        let metadata = SafeTensors::read_metadata(whole)
            .ok()
            .and_then(|(_, header)| header.metadata().clone())
            .unwrap_or_default();
        Ok(Self { path, bytes, entries, metadata })
    }

    /// The file's path (or the name given to [`from_static`](Self::from_static)).
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Every tensor, by key, sorted.
    pub fn entries(&self) -> &BTreeMap<String, TensorEntry> {
        &self.entries
    }

    /// An entry of the file's metadata.
    pub fn metadata(&self, name: &str) -> Option<&str> {
        self.metadata.get(name).map(String::as_str)
    }

    /// The values of a float tensor as f32, row-major. F16 and BF16 widen exactly.
    ///
    /// # Errors
    /// [`TensorFileError::NoSuchTensor`], [`TensorFileError::WrongDtype`], [`TensorFileError::NotFinite`].
    pub fn read_f32(&self, name: &str) -> Result<Vec<f32>, TensorFileError> {
        let entry = self.entry(name)?;
        let bytes = &self.bytes.as_slice()[entry.start..entry.end];
        let values: Vec<f32> = match entry.dtype {
            Dtype::F32 => widen(bytes, f32::from_le_bytes),
            Dtype::F16 => widen(bytes, |b| f16::from_le_bytes(b).to_f32()),
            Dtype::BF16 => widen(bytes, |b| bf16::from_le_bytes(b).to_f32()),
            _ => return Err(self.wrong_dtype(name, entry, "F32, F16 or BF16")),
        };
        self.bytes.release(entry.start, entry.end);
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

    /// The values of a tensor of dtype I64.
    ///
    /// # Errors
    /// [`TensorFileError::NoSuchTensor`], [`TensorFileError::WrongDtype`].
    pub fn read_i64(&self, name: &str) -> Result<Vec<i64>, TensorFileError> {
        let entry = self.entry(name)?;
        if entry.dtype != Dtype::I64 {
            return Err(self.wrong_dtype(name, entry, "I64"));
        }
        let values = widen(&self.bytes.as_slice()[entry.start..entry.end], i64::from_le_bytes);
        self.bytes.release(entry.start, entry.end);
        Ok(values)
    }

    /// The bytes of a tensor of dtype U8 or I8.
    ///
    /// # Errors
    /// [`TensorFileError::NoSuchTensor`], [`TensorFileError::WrongDtype`].
    pub fn read_bytes(&self, name: &str) -> Result<Vec<u8>, TensorFileError> {
        let entry = self.entry(name)?;
        if !matches!(entry.dtype, Dtype::U8 | Dtype::I8) {
            return Err(self.wrong_dtype(name, entry, "U8 or I8"));
        }
        let bytes = self.bytes.as_slice()[entry.start..entry.end].to_vec();
        self.bytes.release(entry.start, entry.end);
        Ok(bytes)
    }

    /// The little-endian bytes of a tensor of any dtype, row-major.
    ///
    /// # Errors
    /// [`TensorFileError::NoSuchTensor`].
    pub fn read_raw(&self, name: &str) -> Result<Vec<u8>, TensorFileError> {
        let entry = self.entry(name)?;
        let bytes = self.bytes.as_slice()[entry.start..entry.end].to_vec();
        self.bytes.release(entry.start, entry.end);
        Ok(bytes)
    }

    fn entry(&self, name: &str) -> Result<&TensorEntry, TensorFileError> {
        self.entries.get(name).ok_or_else(|| TensorFileError::NoSuchTensor {
            path: self.path.clone(),
            name: name.into(),
        })
    }

    fn wrong_dtype(
        &self,
        name: &str,
        entry: &TensorEntry,
        expected: &'static str,
    ) -> TensorFileError {
        TensorFileError::WrongDtype {
            path: self.path.clone(),
            name: name.into(),
            expected,
            found: format!("{:?}", entry.dtype),
        }
    }
}

fn widen<const N: usize, T>(bytes: &[u8], convert: impl Fn([u8; N]) -> T) -> Vec<T> {
    let (elements, _) = bytes.as_chunks::<N>();
    elements.iter().map(|&element| convert(element)).collect()
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
    fn values_are_exact_in_every_dtype_that_represents_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.safetensors");
        let values = [0.0, -1.5, 0.25, 96.0];
        for dtype in [FloatDtype::F32, FloatDtype::F16, FloatDtype::Bf16] {
            sample(&path, &values, dtype);
            assert_eq!(TensorFile::open(&path).unwrap().read_f32("w").unwrap(), values);
        }
    }

    #[test]
    fn metadata_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.safetensors");
        write_stored_with(&path, &[], Some(("note", "so".into()))).unwrap();
        let file = TensorFile::open(&path).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        for _ in 0..20 {
            write_stored_with(&path, &[], Some(("note", "so".into()))).unwrap();
            assert!(std::fs::read(&path).unwrap() == bytes, "the same bytes each time");
        }
        assert_eq!((file.metadata("note"), file.metadata("format")), (Some("so"), Some("pt")));
        sample(&path, &[1.0], FloatDtype::F32);
        assert_eq!(TensorFile::open(&path).unwrap().metadata("note"), None);
    }

    #[test]
    fn a_truncated_file_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.safetensors");
        sample(&path, &[1.0; 64], FloatDtype::F32);
        let whole = std::fs::read(&path).unwrap();
        for keep in [0, 4, 20, whole.len() - 1] {
            std::fs::write(&path, &whole[..keep]).unwrap();
            let error = TensorFile::open(&path).err().expect("a truncated file must be refused");
            assert!(error.to_string().contains("t.safetensors"), "{error}");
        }
    }

    #[test]
    fn a_nan_is_reported_with_its_index() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.safetensors");
        sample(&path, &[1.0, f32::NAN], FloatDtype::Bf16);
        let error = TensorFile::open(&path).unwrap().read_f32("w").unwrap_err().to_string();
        assert!(error.contains("`w`") && error.contains("element 1"), "{error}");
    }
}
