//! Int8 codes of a matrix, row by row, as in LLM.int8 (Dettmers et al., 2022, arXiv:2208.07339).

use half::f16;
use rayon::prelude::*;

/// Codes (signed numbers as bytes) and the largest magnitude of each row.
///
/// bitsandbytes rounds the weight to f16 first, which this code reproduces; values beyond f16's range are clamped.
pub(crate) fn quantize(values: &[f32], d_in: usize) -> (Vec<u8>, Vec<f32>) {
    let to_f16 =
        |value: f32| f16::from_f32(value).to_f32().clamp(f16::MIN.to_f32(), f16::MAX.to_f32());
    let mut codes = vec![0u8; values.len()];
    let scales = codes
        .par_chunks_mut(d_in.max(1))
        .zip(values.par_chunks(d_in.max(1)))
        .map(|(codes, row)| {
            let absmax = row.iter().fold(0.0f32, |max, &v| max.max(to_f16(v).abs()));
            if absmax > 0.0 {
                // Not 127 / absmax: PyTorch multiplies by the reciprocal, and the last bit decides a tie.
                let factor = 1.0 / absmax * 127.0;
                for (code, &value) in codes.iter_mut().zip(row) {
                    *code = ((to_f16(value) * factor).round_ties_even() as i8).cast_unsigned();
                }
            }
            absmax
        })
        .collect();
    (codes, scales)
}
