//! Codes, scales and values of quantized matrices equal bitsandbytes', byte for byte and bit for bit.

use burn::tensor::Element;
use emberlm_lora::random::{generator, normal};
use emberlm_quant::codec::{NestedScales, QuantizedMatrix, Scales, dynamic};
use emberlm_quant::{QuantBackend, QuantFormat, Quantization, Quantized, TensorFile};
use emberlm_tests::{assert_close, golden_tensors};

use crate::support::{Flex, NdArray, as_avx512_kernel_reads};

const MATRICES: [&str; 4] = ["square", "rect", "ragged", "outliers"];

fn four_bit(format: QuantFormat, double_quant: bool) -> Quantization {
    Quantization { double_quant, ..Quantization::new(format) }
}

/// Each matrix of the golden in both 4-bit formats, with and without double quantization: key and quantized by us.
fn quantized(golden: &TensorFile) -> Vec<(String, QuantizedMatrix)> {
    let mut all = Vec::new();
    for name in MATRICES {
        let key = format!("{name}.weight");
        let shape: [usize; 2] = golden.entries()[&key].shape[..].try_into().unwrap();
        let weight = golden.read_f32(&key).unwrap();
        for format in [QuantFormat::Nf4, QuantFormat::Fp4] {
            for (double_quant, suffix) in [(false, "sq"), (true, "dq")] {
                let quantization = four_bit(format, double_quant);
                let matrix = QuantizedMatrix::quantize(&weight, shape, &quantization);
                all.push((format!("{name}.{format}.{suffix}"), matrix));
            }
        }
    }
    all
}

fn same_bits(what: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        // Adding 0 makes one zero of both.
        assert_eq!((found + 0.0).to_bits(), (expected + 0.0).to_bits(), "{what}, element {i}");
    }
}

#[test]
fn codes_and_scales_have_the_bytes_of_bitsandbytes() {
    let golden = golden_tensors("nf4/golden.safetensors");
    for (key, matrix) in quantized(&golden) {
        let tensor = |part: &str| golden.read_f32(&format!("{key}.{part}")).unwrap();
        let bytes = |part: &str| golden.read_bytes(&format!("{key}.{part}")).unwrap();
        assert_eq!(matrix.codes, bytes("packed"), "{key}: codes");
        match &matrix.scales {
            Scales::Plain(scales) => same_bits(&key, scales, &tensor("absmax")),
            Scales::Nested(NestedScales { codes, absmax, map, offset, .. }) => {
                assert_eq!(codes, &bytes("absmax"), "{key}: codes of scales");
                same_bits(&format!("{key}: nested_absmax"), absmax, &tensor("nested_absmax"));
                same_bits(&format!("{key}: map"), map, &tensor("nested_quant_map"));
                same_bits(&format!("{key}: offset"), &[*offset], &tensor("offset"));
            }
        }
        let values = as_avx512_kernel_reads(matrix).dequantize();
        same_bits(&format!("{key}: values"), &values, &tensor("dequant"));
    }
}

/// What a backend makes of a matrix, and whether it comes back as it was.
fn on_backend<B: QuantBackend>(key: &str, matrix: &QuantizedMatrix) -> Vec<f32> {
    let weight = Quantized::<B>::new(matrix.clone(), &Default::default());
    assert_eq!(weight.to_host(), *matrix, "{key}: back on the host");
    B::dequantize_weight(&weight, B::FloatElem::dtype()).into_data().iter::<f32>().collect()
}

pub(crate) fn backend_dequantizes_exactly<B: QuantBackend>() {
    let golden = golden_tensors("nf4/golden.safetensors");
    for (key, matrix) in quantized(&golden) {
        same_bits(&key, &on_backend::<B>(&key, &matrix), &matrix.dequantize());
        let matrix = as_avx512_kernel_reads(matrix);
        let expected = golden.read_f32(&format!("{key}.dequant")).unwrap();
        same_bits(&key, &on_backend::<B>(&key, &matrix), &expected);
    }
    let weight = normal(&mut generator(1, "int8", &[]), 37 * 50, 0.3);
    let int8 = QuantizedMatrix::quantize(&weight, [37, 50], &Quantization::new(QuantFormat::Int8));
    same_bits("int8", &on_backend::<B>("int8", &int8), &int8.dequantize());
}

#[test]
fn ndarray_dequantizes_exactly() {
    backend_dequantizes_exactly::<NdArray>();
}

#[test]
fn flex_dequantizes_exactly() {
    backend_dequantizes_exactly::<Flex>();
}

#[test]
fn a_value_between_two_codes_goes_to_the_lower_one() {
    // The greatest magnitude is 1, so that scaling changes nothing, and the rest is middles of neighbouring values.
    let mut ascending = QuantFormat::Nf4.values();
    ascending.sort_by(f32::total_cmp);
    let mut block = vec![1.0; 64];
    for (value, pair) in block.iter_mut().zip(ascending.windows(2)) {
        *value = (pair[0] + pair[1]) / 2.0;
    }
    let quantize = |block: &[f32]| {
        let matrix = QuantizedMatrix::quantize(block, [1, 64], &four_bit(QuantFormat::Nf4, false));
        matrix.codes.iter().flat_map(|byte| [byte >> 4, byte & 15]).take(15).collect::<Vec<_>>()
    };
    assert_eq!(quantize(&block), (0..15).collect::<Vec<u8>>());
    for value in &mut block[..15] {
        *value = value.next_up();
    }
    assert_eq!(quantize(&block), (1..16).collect::<Vec<u8>>());
}

#[test]
fn blocks_of_zeros_are_zeros_again() {
    for format in QuantFormat::ALL {
        for double_quant in [false, true] {
            for shape in [[2, 64], [3, 11]] {
                let zeros = vec![0.0; shape[0] * shape[1]];
                let matrix =
                    QuantizedMatrix::quantize(&zeros, shape, &four_bit(format, double_quant));
                assert!(matrix.dequantize().iter().all(|v| v.abs() < 1e-37), "{format} {shape:?}");
            }
        }
    }
}

#[test]
fn int8_rows_have_their_greatest_magnitude_as_scale() {
    let weight = [1.0, -2.0, 0.5, 0.0, 0.0, 0.0, 3.0, 1.5, -0.012];
    let int8 = Quantization::new(QuantFormat::Int8);
    let matrix = QuantizedMatrix::quantize(&weight, [3, 3], &int8);
    assert_eq!(matrix.scales, Scales::Plain(vec![2.0, 0.0, 3.0]));
    // 63.5 and 31.75 round to even and to nearest.
    let codes = [64, -127, 32, 0, 0, 0, 127, 64, -1i8].map(i8::cast_unsigned);
    assert_eq!(matrix.codes, codes);
    let dequantized: Vec<f64> = matrix.dequantize().into_iter().map(f64::from).collect();
    assert_close("int8", &dequantized, &weight.map(f64::from), 4e-3);
}

#[test]
fn double_quantized_nf4_takes_at_most_0_55_bytes_a_parameter() {
    let shape = [576, 1536];
    let weight = normal(&mut generator(1, "size", &[]), shape[0] * shape[1], 0.05);
    let matrix = QuantizedMatrix::quantize(&weight, shape, &Quantization::new(QuantFormat::Nf4));
    let per_parameter = |bytes: usize| bytes as f64 / (shape[0] * shape[1]) as f64;
    assert!(per_parameter(matrix.bytes()) < 0.55);
    let on_device = |memory: usize| assert!(per_parameter(memory) < 0.55, "{memory} bytes");
    on_device(Quantized::<Flex>::new(matrix.clone(), &Default::default()).memory());
    on_device(Quantized::<NdArray>::new(matrix, &Default::default()).memory());
}

#[test]
fn the_dynamic_map_finds_every_one_of_its_values() {
    // But those next to zero, which lie closer together than bitsandbytes' table of 65536 steps can tell.
    let map = dynamic::map();
    let (codes, scales) = dynamic::quantize(&map);
    assert_eq!(scales, [1.0]);
    let wrong = codes.iter().enumerate().filter(|(i, code)| usize::from(**code) != *i);
    assert!(wrong.clone().all(|(i, _)| map[i].abs() < 1e-4), "{:?}", wrong.collect::<Vec<_>>());
}
