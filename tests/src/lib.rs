//! What the integration tests share: golden values and how far from them is too far.
#![deny(missing_docs)]

use std::path::{Path, PathBuf};

use burn::tensor::{Tensor, backend::Backend};
use emberlm_quant::TensorFile;
use serde_json::Value;

/// Logits and losses: law 1.
pub const VALUE_TOLERANCE: f64 = 1e-4;
/// Gradients and trajectories: law 1.
pub const GRADIENT_TOLERANCE: f64 = 1e-3;

/// A path below `tests/goldens/`, or below `$EMBERLM_GOLDENS`: goldens that `generate.py` made with another seed.
pub fn golden_path(relative: &str) -> PathBuf {
    let here = || Path::new(env!("CARGO_MANIFEST_DIR")).join("goldens");
    std::env::var_os("EMBERLM_GOLDENS").map_or_else(here, PathBuf::from).join(relative)
}

/// A golden's JSON file.
pub fn golden_json(relative: &str) -> Value {
    let path = golden_path(relative);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{path:?}: {e}"))
}

/// A golden's safetensors file.
pub fn golden_tensors(relative: &str) -> TensorFile {
    TensorFile::open(&golden_path(relative)).unwrap()
}

/// A number in a golden's JSON.
pub fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or_else(|| panic!("no number `{key}` in {value}"))
}

/// The greatest difference, relative to the greatest expected magnitude.
pub fn relative_error(found: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len(), "as many values as expected");
    let greatest = expected.iter().fold(0.0f64, |max, v| max.max(v.abs()));
    let difference =
        found.iter().zip(expected).fold(0.0f64, |max, (f, e)| max.max(nan_is_far(f - e)));
    if greatest == 0.0 { difference } else { difference / greatest }
}

/// `f64::max` drops NaN, so a NaN would pass as no difference.
fn nan_is_far(difference: f64) -> f64 {
    if difference.is_nan() { f64::INFINITY } else { difference.abs() }
}

/// Fails unless `found` is within `tolerance` of `expected`, by [`relative_error`].
pub fn assert_close(what: &str, found: &[f64], expected: &[f64], tolerance: f64) {
    let error = relative_error(found, expected);
    // Seen with `--nocapture`: how far from the tolerance a test is.
    println!("{what}: relative error {error:.2e}");
    assert!(error <= tolerance, "{what}: relative error {error:.2e}, allowed {tolerance:.0e}");
}

/// Fails unless two numbers are within a relative `tolerance`.
pub fn assert_close_number(what: &str, found: f64, expected: f64, tolerance: f64) {
    let error = nan_is_far(found - expected) / expected.abs();
    println!("{what}: relative error {error:.2e}");
    assert!(
        error <= tolerance,
        "{what}: {found} instead of {expected}, relative error {error:.2e}, allowed {tolerance:.0e}"
    );
}

/// A tensor's values, row-major.
pub fn values<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> Vec<f64> {
    tensor.into_data().iter::<f64>().collect()
}

/// A golden's float tensor, row-major.
pub fn expected(file: &TensorFile, name: &str) -> Vec<f64> {
    file.read_f32(name).unwrap().into_iter().map(f64::from).collect()
}

/// Where real models and tokenizers lie, fetched by hand; `None`, said aloud, where they were not.
pub fn real_asset(name: &str) -> Option<PathBuf> {
    let base = std::env::var_os("EMBERLM_ASSETS").map(PathBuf::from).or_else(|| {
        std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache/emberlm-assets"))
    })?;
    let path = base.join(name);
    if path.exists() {
        return Some(path);
    }
    eprintln!("SKIPPED: {name} is not in $EMBERLM_ASSETS (default ~/.cache/emberlm-assets)");
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_is_never_close() {
        assert!(relative_error(&[f64::NAN, 1.0], &[1.0, 1.0]).is_infinite());
    }
}
