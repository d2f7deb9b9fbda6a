//! The GPU backends that this was built for: every kernel equals the portable default on NdArray, whole models equal the
//! goldens, and the same input gives the same bits.
//!
//! The tests' names begin with the backend, so that `cargo test --features wgpu wgpu` runs its own. A software Vulkan
//! device will do for WGPU; CUDA needs a GPU (`.ci/gpu-check`).

#[cfg(feature = "wgpu")]
mod wgpu {
    use burn_wgpu::Wgpu as Gpu;

    use crate::{
        adapter_goldens, half_weights, kernels, model_goldens, qlora, quant_goldens, train_goldens,
    };

    #[test]
    fn attention() {
        kernels::attention_equals_the_portable_one::<Gpu>();
    }

    #[test]
    fn masked_tokens() {
        kernels::a_masked_token_has_no_influence::<Gpu>();
    }

    #[test]
    fn small_kernels() {
        kernels::small_kernels_equal_the_portable_ones::<Gpu>();
    }

    #[test]
    fn same_bits() {
        assert!(kernels::everything::<Gpu>() == kernels::everything::<Gpu>());
    }

    #[test]
    fn half_precision() {
        kernels::half_precision_is_close::<burn_wgpu::Wgpu<half::f16>>();
    }

    #[test]
    fn half_weights() {
        half_weights::where_the_device_has_them::<Gpu>();
    }

    #[test]
    fn dequantizing() {
        quant_goldens::backend_dequantizes_exactly::<Gpu>();
    }

    #[test]
    fn quantized_products() {
        qlora::equals_dense::<Gpu>();
    }

    #[test]
    fn logits_and_gradients() {
        for name in ["llama", "qwen2"] {
            model_goldens::logits_equal::<Gpu>(name);
            model_goldens::loss_and_gradients_equal::<Gpu>(name);
        }
    }

    #[test]
    fn generation() {
        model_goldens::generation_equals::<Gpu>("llama");
    }

    #[test]
    fn adapter() {
        adapter_goldens::equals_peft::<Gpu>("lora-all");
    }

    #[test]
    fn qlora() {
        qlora::equals_golden::<Gpu>();
    }

    #[test]
    fn lora_run() {
        train_goldens::whole_run_equals("lora-sft", "wgpu", "block", [4, 1]);
    }
}

#[cfg(feature = "cuda")]
mod cuda {
    use burn_cuda::Cuda as Gpu;

    use crate::{
        adapter_goldens, half_weights, kernels, model_goldens, qlora, quant_goldens, train_goldens,
    };

    #[test]
    fn attention() {
        kernels::attention_equals_the_portable_one::<Gpu>();
    }

    #[test]
    fn masked_tokens() {
        kernels::a_masked_token_has_no_influence::<Gpu>();
    }

    #[test]
    fn small_kernels() {
        kernels::small_kernels_equal_the_portable_ones::<Gpu>();
    }

    #[test]
    fn same_bits() {
        assert!(kernels::everything::<Gpu>() == kernels::everything::<Gpu>());
    }

    #[test]
    fn half_precision() {
        kernels::half_precision_is_close::<burn_cuda::Cuda<half::f16>>();
    }

    #[test]
    fn half_weights() {
        half_weights::where_the_device_has_them::<Gpu>();
    }

    #[test]
    fn dequantizing() {
        quant_goldens::backend_dequantizes_exactly::<Gpu>();
    }

    #[test]
    fn quantized_products() {
        qlora::equals_dense::<Gpu>();
    }

    #[test]
    fn logits_and_gradients() {
        for name in ["llama", "qwen2"] {
            model_goldens::logits_equal::<Gpu>(name);
            model_goldens::loss_and_gradients_equal::<Gpu>(name);
        }
    }

    #[test]
    fn generation() {
        model_goldens::generation_equals::<Gpu>("llama");
    }

    #[test]
    fn adapter() {
        adapter_goldens::equals_peft::<Gpu>("lora-all");
    }

    #[test]
    fn qlora() {
        qlora::equals_golden::<Gpu>();
    }

    #[test]
    fn lora_run() {
        train_goldens::whole_run_equals("lora-sft", "cuda", "block", [4, 1]);
    }
}
