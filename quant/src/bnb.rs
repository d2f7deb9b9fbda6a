//! Quantized weights in checkpoints, in the layout of bitsandbytes and transformers.
//!
//! A 4-bit weight `X.weight` is stored as packed bytes `[(n + 1) / 2, 1]`, with `X.weight.absmax`, `.quant_map`, and
//! for double quantization `.nested_absmax` and `.nested_quant_map`; `X.weight.quant_state.bitsandbytes__nf4` is JSON
//! in bytes, and the only place with the shape. An int8 weight is stored as I8 `[d_out, d_in]` with `X.SCB`, the rows'
//! largest magnitudes.

use burn::tensor::backend::Backend;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::codec::{NestedScales, QuantizedMatrix, Scales};
use crate::tensor_file::{FloatDtype, NamedTensor, StoredDtype, StoredTensor};
use crate::{QuantFormat, Quantization, QuantizedScales, TensorFile, TensorFileError, Weight};

/// Block sizes that bitsandbytes supports.
const BLOCKS: [usize; 8] = [32, 64, 128, 256, 512, 1024, 2048, 4096];

/// The `quantization_config` in a `config.json`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BnbConfig {
    /// The format of the quantized weights.
    pub format: QuantFormat,
    /// Whether the scales are quantized too.
    pub double_quant: bool,
    /// Dense modules.
    pub skip_modules: Vec<String>,
}

impl From<BnbConfig> for Quantization {
    /// The settings that quantize a dense model in the same way.
    fn from(config: BnbConfig) -> Self {
        let BnbConfig { format, double_quant, skip_modules } = config;
        Self { format, double_quant, skip_modules }
    }
}

impl BnbConfig {
    /// The configuration that describes a model's linear layers, given by name; `None` if all are dense.
    pub fn of_layers<'a, B: Backend>(
        layers: impl Iterator<Item = (&'a str, &'a Weight<B>)>,
    ) -> Option<Self> {
        let (mut first, mut skip_modules) = (None, Vec::new());
        for (name, weight) in layers {
            match weight {
                Weight::Dense(_) => skip_modules.push(name.to_string()),
                Weight::Quantized(weight) => first = first.or(Some(weight)),
            }
        }
        let first = first?;
        let double_quant = matches!(first.scales, QuantizedScales::Nested(_));
        Some(Self { format: first.format(), double_quant, skip_modules })
    }

    /// Reads a `quantization_config`.
    ///
    /// # Errors
    /// Every key with an unsupported value: the value found and the values expected.
    pub fn parse(value: &Value) -> Result<Self, Vec<String>> {
        let mut faults = Vec::new();
        let mut fault = |key: &str, expected: &str| {
            let found = value.get(key).map_or("missing".into(), Value::to_string);
            faults.push(format!("`quantization_config.{key}` is {found}, expected {expected}"));
        };
        let is_true = |key: &str| value.get(key).and_then(Value::as_bool).unwrap_or(false);
        let text = |key: &str| value.get(key).filter(|value| !value.is_null());
        if text("quant_method").is_some_and(|method| method != "bitsandbytes") {
            fault(
                "quant_method",
                "\"bitsandbytes\"; dequantize the model with the tool that quantized it",
            );
        }
        let format = match (is_true("load_in_4bit"), is_true("load_in_8bit")) {
            (false, true) => QuantFormat::Int8,
            (true, false) => match text("bnb_4bit_quant_type").map(Value::as_str) {
                // bitsandbytes' default.
                None | Some(Some("fp4")) => QuantFormat::Fp4,
                Some(Some("nf4")) => QuantFormat::Nf4,
                Some(_) => {
                    fault("bnb_4bit_quant_type", "\"nf4\" or \"fp4\"");
                    QuantFormat::Nf4
                }
            },
            _ => {
                fault("load_in_4bit", "true, or `load_in_8bit` true, and not both");
                QuantFormat::Nf4
            }
        };
        if text("bnb_4bit_quant_storage").is_some_and(|storage| storage != "uint8") {
            fault("bnb_4bit_quant_storage", "\"uint8\"");
        }
        let skip_modules = match text("llm_int8_skip_modules") {
            None => Vec::new(),
            Some(Value::Array(names)) if names.iter().all(Value::is_string) => {
                names.iter().filter_map(Value::as_str).map(String::from).collect()
            }
            Some(_) => {
                fault("llm_int8_skip_modules", "a list of names");
                Vec::new()
            }
        };
        let double_quant = is_true("bnb_4bit_use_double_quant");
        if faults.is_empty() {
            Ok(Self { format, double_quant, skip_modules })
        } else {
            Err(faults)
        }
    }

    /// The `quantization_config` for transformers, which will compute in `dtype`.
    pub fn to_json(&self, dtype: FloatDtype) -> Value {
        let Self { format, double_quant, skip_modules } = self;
        let is_int8 = *format == QuantFormat::Int8;
        json!({
            "quant_method": "bitsandbytes",
            "_load_in_4bit": !is_int8,
            "_load_in_8bit": is_int8,
            "load_in_4bit": !is_int8,
            "load_in_8bit": is_int8,
            "bnb_4bit_quant_type": if is_int8 { "fp4" } else { format.name() },
            "bnb_4bit_use_double_quant": !is_int8 && *double_quant,
            "bnb_4bit_compute_dtype": dtype.torch_name(),
            "bnb_4bit_quant_storage": "uint8",
            "llm_int8_enable_fp32_cpu_offload": false,
            "llm_int8_has_fp16_weight": false,
            "llm_int8_skip_modules": skip_modules,
            "llm_int8_threshold": 6.0,
        })
    }
}

/// The JSON of a quantized weight's `quant_state`.
#[derive(Deserialize)]
struct QuantState {
    quant_type: String,
    blocksize: usize,
    shape: Vec<usize>,
    nested_blocksize: Option<usize>,
    nested_offset: Option<f32>,
}

/// A quantized weight whose tensors are complete in a checkpoint; read on demand.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredMatrix {
    format: QuantFormat,
    shape: [usize; 2],
    block: usize,
    nested: Option<(usize, f32)>,
}

/// Finds the file that holds a tensor.
pub type FileOf<'a> = &'a dyn Fn(&str) -> Option<&'a TensorFile>;

/// Whether the tensor `key` (`X.weight`) is stored quantized, completely or not, judged by its type or its companion
/// tensors.
pub fn is_quantized<'a>(file_of: FileOf<'a>, key: &str) -> bool {
    let is_bytes =
        file_of(key).is_some_and(|file| FloatDtype::of_entry(file.entries()[key].dtype).is_none());
    is_bytes || companions(key).iter().any(|companion| file_of(companion).is_some())
}

/// Every possible companion tensor of a quantized weight.
pub fn companions(key: &str) -> Vec<String> {
    let module = key.strip_suffix(".weight").unwrap_or(key);
    let parts = ["absmax", "quant_map", "nested_absmax", "nested_quant_map"];
    let states = ["nf4", "fp4"].map(|format| format!("{key}.quant_state.bitsandbytes__{format}"));
    let int8 = [format!("{module}.SCB"), format!("{module}.weight_format")];
    parts.iter().map(|part| format!("{key}.{part}")).chain(states).chain(int8).collect()
}

/// Collects the faults of the tensors of one weight.
struct Checker<'a, 'f> {
    file_of: FileOf<'a>,
    key: &'f str,
    faults: &'f mut Vec<String>,
}

impl<'a> Checker<'a, '_> {
    fn fault(&mut self, fault: String) {
        self.faults.push(fault);
    }

    /// The file of a required tensor with this element type and number of elements.
    fn tensor(&mut self, key: &str, dtype: &str, elements: usize) -> Option<&'a TensorFile> {
        let Some(file) = (self.file_of)(key) else {
            let weight = self.key;
            self.fault(format!(
                "missing: {key} ({dtype}, {elements} elements), a part of {weight}"
            ));
            return None;
        };
        let entry = &file.entries()[key];
        let found = format!("{:?}", entry.dtype);
        if found != dtype {
            self.fault(format!("dtype of {key}: expected {dtype}, found {found}"));
            return None;
        }
        let count: usize = entry.shape.iter().product();
        if count != elements {
            self.fault(format!(
                "shape of {key}: expected {elements} elements, found {count} ({:?})",
                entry.shape
            ));
            return None;
        }
        Some(file)
    }

    fn int8(&mut self, module: &str, shape: [usize; 2]) -> StoredMatrix {
        let [d_out, d_in] = shape;
        self.tensor(self.key, "I8", d_out * d_in);
        self.tensor(&format!("{module}.SCB"), "F32", d_out);
        let layout = format!("{module}.weight_format");
        let bytes = (self.file_of)(&layout).map(|file| file.read_bytes(&layout));
        if bytes.is_some_and(|bytes| !bytes.is_ok_and(|bytes| bytes.iter().all(|&b| b == 0))) {
            self.fault(format!(
                "{layout}: expected 0 (row-major); save the model with a newer bitsandbytes"
            ));
        }
        StoredMatrix { format: QuantFormat::Int8, shape, block: d_in, nested: None }
    }

    fn state(&mut self) -> Option<(QuantFormat, QuantState)> {
        let states = [QuantFormat::Nf4, QuantFormat::Fp4]
            .map(|format| (format, format!("{}.quant_state.bitsandbytes__{format}", self.key)));
        let found = states
            .iter()
            .find_map(|(format, key)| (self.file_of)(key).map(|file| (*format, key.clone(), file)));
        let Some((format, key, file)) = found else {
            self.fault(format!("missing: {} or …__fp4", states[0].1));
            return None;
        };
        let state = file.read_bytes(&key).map_err(|e| e.to_string());
        let state = state.and_then(|bytes| {
            serde_json::from_slice::<QuantState>(&bytes).map_err(|e| {
                format!("{key}: expected JSON with quant_type, blocksize and shape: {e}")
            })
        });
        match state {
            Ok(state) if state.quant_type == format.name() => Some((format, state)),
            Ok(state) => {
                self.fault(format!(
                    "{key}: quant_type is `{}`, expected `{format}`",
                    state.quant_type
                ));
                None
            }
            Err(fault) => {
                self.fault(fault);
                None
            }
        }
    }

    fn four_bit(&mut self, shape: [usize; 2]) -> Option<StoredMatrix> {
        let (format, state) = self.state()?;
        let key = self.key.to_string();
        if state.shape != shape {
            self.fault(format!(
                "shape of {key}: expected {shape:?}, its quant_state has {:?}",
                state.shape
            ));
            return None;
        }
        if !BLOCKS.contains(&state.blocksize) {
            self.fault(format!(
                "{key}: blocksize is {}, expected one of {BLOCKS:?}",
                state.blocksize
            ));
            return None;
        }
        let n = shape[0] * shape[1];
        let blocks = n.div_ceil(state.blocksize);
        self.tensor(&key, "U8", n.div_ceil(2));
        self.map(format);
        let nested = self.nested(&state, blocks)?;
        self.tensor(&format!("{key}.absmax"), if nested.is_some() { "U8" } else { "F32" }, blocks);
        Some(StoredMatrix { format, shape, block: state.blocksize, nested })
    }

    /// The map must equal the format's, which kernels have built in.
    fn map(&mut self, format: QuantFormat) {
        let key = format!("{}.quant_map", self.key);
        let Some(file) = self.tensor(&key, "F32", 16) else { return };
        let is_known = file.read_f32(&key).is_ok_and(|map| {
            map.iter().zip(format.values()).all(|(found, value)| (found - value).abs() < 1e-4)
        });
        if !is_known {
            self.fault(format!("{key}: expected the 16 values of {format}, found others"));
        }
    }

    /// Block size and offset of quantized scales; the outer `None` after a fault.
    fn nested(&mut self, state: &QuantState, blocks: usize) -> Option<Option<(usize, f32)>> {
        let (absmax, map) =
            (format!("{}.nested_absmax", self.key), format!("{}.nested_quant_map", self.key));
        let is_there = (self.file_of)(&absmax).is_some() || (self.file_of)(&map).is_some();
        match (state.nested_blocksize, state.nested_offset) {
            (None, None) if !is_there => Some(None),
            (Some(block), Some(offset)) if block > 0 && offset.is_finite() => {
                self.tensor(&map, "F32", 256);
                self.tensor(&absmax, "F32", blocks.div_ceil(block));
                Some(Some((block, offset)))
            }
            (block, offset) => {
                let key = self.key;
                self.fault(format!(
                    "{key}: double quantization: expected nested_blocksize and nested_offset in its quant_state, found {block:?} and {offset:?}"
                ));
                None
            }
        }
    }
}

impl StoredMatrix {
    /// Checks the tensors of the quantized weight `key` (`X.weight`) against its `shape` and against each other.
    ///
    /// Adds faults to `faults`; a faulty weight is not returned.
    pub fn find<'a>(
        file_of: FileOf<'a>,
        key: &str,
        shape: [usize; 2],
        faults: &mut Vec<String>,
    ) -> Option<Self> {
        let before = faults.len();
        let module = key.strip_suffix(".weight").unwrap_or(key);
        let is_int8 = file_of(&format!("{module}.SCB")).is_some()
            || file_of(key).is_some_and(|file| format!("{:?}", file.entries()[key].dtype) == "I8");
        let mut checker = Checker { file_of, key, faults };
        let found =
            if is_int8 { Some(checker.int8(module, shape)) } else { checker.four_bit(shape) };
        found.filter(|_| faults.len() == before)
    }

    /// The format of its codes.
    pub fn format(&self) -> QuantFormat {
        self.format
    }

    /// Whether it uses double quantization.
    pub fn is_double_quantized(&self) -> bool {
        self.nested.is_some()
    }

    /// Reads codes and scales of the weight `key`, which [`find`](Self::find) has checked.
    ///
    /// # Errors
    /// [`TensorFileError`], among them a NaN among the scales.
    pub fn read<'a>(
        &self,
        file_of: FileOf<'a>,
        key: &str,
    ) -> Result<QuantizedMatrix, TensorFileError> {
        let path = || file_of(key).map(|file| file.path().to_path_buf()).unwrap_or_default();
        let file = |name: &str| {
            let missing = || TensorFileError::NoSuchTensor { path: path(), name: name.into() };
            file_of(name).ok_or_else(missing)
        };
        let floats = |name: String| file(&name)?.read_f32(&name);
        let bytes = |name: &str| file(name)?.read_bytes(name);
        let module = key.strip_suffix(".weight").unwrap_or(key);
        let Self { format, shape, block, nested } = *self;
        let scales = match (format, nested) {
            (QuantFormat::Int8, _) => Scales::Plain(floats(format!("{module}.SCB"))?),
            (_, None) => Scales::Plain(floats(format!("{key}.absmax"))?),
            (_, Some((block, offset))) => Scales::Nested(NestedScales {
                codes: bytes(&format!("{key}.absmax"))?,
                absmax: floats(format!("{key}.nested_absmax"))?,
                block,
                map: floats(format!("{key}.nested_quant_map"))?,
                offset,
            }),
        };
        Ok(QuantizedMatrix { format, shape, block, codes: bytes(key)?, scales })
    }
}

/// The tensors in which bitsandbytes stores the quantized weight `key` (`X.weight`). transformers will compute in
/// `dtype`.
pub fn tensors_to_write<'a>(
    key: &str,
    matrix: &QuantizedMatrix,
    dtype: FloatDtype,
) -> Vec<StoredTensor<'a>> {
    let floats = |name: String, values: Vec<f32>| {
        let shape = vec![values.len()];
        let values = Box::new(move || values.clone());
        StoredTensor::float(NamedTensor { name, shape, values }, FloatDtype::F32)
    };
    let bytes = |name: String, shape: Vec<usize>, dtype, bytes: Vec<u8>| StoredTensor {
        name,
        shape,
        dtype,
        bytes: Box::new(move || bytes.clone()),
    };
    let module = key.strip_suffix(".weight").unwrap_or(key);
    let QuantizedMatrix { format, shape: [d_out, d_in], block, codes, scales } = matrix;
    let mut state = json!({
        "quant_type": format.name(),
        "blocksize": block,
        "dtype": dtype.torch_name(),
        "shape": [d_out, d_in],
    });
    let mut tensors = Vec::new();
    match (format, scales) {
        (QuantFormat::Int8, Scales::Plain(scales)) => {
            let shape = vec![*d_out, *d_in];
            tensors.push(bytes(key.into(), shape, StoredDtype::I8, codes.clone()));
            tensors.push(floats(format!("{module}.SCB"), scales.clone()));
            tensors.push(bytes(
                format!("{module}.weight_format"),
                vec![],
                StoredDtype::U8,
                vec![0],
            ));
            return tensors;
        }
        (_, Scales::Plain(scales)) => {
            tensors.push(floats(format!("{key}.absmax"), scales.clone()));
        }
        (_, Scales::Nested(nested)) => {
            let NestedScales { codes, absmax, block, map, offset } = nested;
            let n = vec![codes.len()];
            tensors.push(bytes(format!("{key}.absmax"), n, StoredDtype::U8, codes.clone()));
            tensors.push(floats(format!("{key}.nested_absmax"), absmax.clone()));
            tensors.push(floats(format!("{key}.nested_quant_map"), map.clone()));
            state["nested_blocksize"] = json!(block);
            state["nested_dtype"] = json!("float32");
            state["nested_offset"] = json!(f64::from(*offset));
        }
    }
    tensors.push(bytes(key.into(), vec![codes.len(), 1], StoredDtype::U8, codes.clone()));
    tensors.push(floats(format!("{key}.quant_map"), format.values()));
    let name = format!("{key}.quant_state.bitsandbytes__{format}");
    let text = state.to_string().into_bytes();
    tensors.push(bytes(name, vec![text.len()], StoredDtype::U8, text));
    tensors
}
